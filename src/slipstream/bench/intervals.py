"""Medians with bootstrap intervals."""

from __future__ import annotations

import numpy as np

from slipstream.bench.results import Interval

_SHARE = 0.95
_RESAMPLES = 2000


def median_interval(samples: list[float], seed: int = 0) -> Interval:
    """The percentile bootstrap of the median. One sample has no width; none gives zeros."""
    if not samples:
        return Interval(0.0, 0.0, 0.0)
    values = np.array(samples, np.float64)
    picks = np.random.default_rng(seed).integers(0, len(values), (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(values[picks], axis=1), [(1 - _SHARE) / 2, (1 + _SHARE) / 2])
    return Interval(float(np.median(values)), float(low), float(high))
