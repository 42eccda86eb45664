"""Medians and geometric means with bootstrap intervals."""

from __future__ import annotations

import numpy as np

from slipstream.measurement.results import Interval

_SHARE = 0.95
_RESAMPLES = 2000
_ENOUGH = 6  # samples; with fewer, bootstrap intervals are too narrow
_ONE_SAMPLE = 0.1  # half the width for a single sample, as a share: how far such machines vary
_FEW_SAMPLES = 0.05  # the least width of a few, each way, however close they lie


def geometric_mean_interval(ratios: list[float]) -> Interval:
    """The bootstrap of the geometric mean; few ratios have the width that `median_interval` gives them."""
    logs = np.log(np.maximum(np.array(ratios, np.float64), 1e-9))
    if len(logs) < _ENOUGH:
        few = median_interval(ratios)
        return Interval(float(np.exp(logs.mean())) if ratios else 0.0, few.low, few.high)
    picks = np.random.default_rng(0).integers(0, len(logs), (_RESAMPLES, len(logs)))
    low, high = np.quantile(logs[picks].mean(axis=1), [(1 - _SHARE) / 2, (1 + _SHARE) / 2])
    return Interval(float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high)))


def median_interval(samples: list[float]) -> Interval:
    """The percentile bootstrap of the median. Few samples give their range, widened by itself and by 5 % at least each
    way, by factors where they are all positive; one gives 10 % each way; none gives zeros."""
    if not samples:
        return Interval(0.0, 0.0, 0.0)
    values = np.array(samples, np.float64)
    middle = float(np.median(values))
    if len(values) < _ENOUGH and values.min() > 0:
        widening = max(float(values.max() / values.min()), 1 + (_FEW_SAMPLES if len(values) > 1 else _ONE_SAMPLE))
        return Interval(middle, float(values.min()) / widening, float(values.max()) * widening)
    if len(values) < _ENOUGH:
        least = (_FEW_SAMPLES if len(values) > 1 else _ONE_SAMPLE) * abs(middle)
        spread = max(float(values.max() - values.min()), least)
        return Interval(middle, float(values.min()) - spread, float(values.max()) + spread)
    picks = np.random.default_rng(0).integers(0, len(values), (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(values[picks], axis=1), [(1 - _SHARE) / 2, (1 + _SHARE) / 2])
    return Interval(middle, float(low), float(high))
