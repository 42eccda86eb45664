"""Rope scaling as divisors of the inverse frequencies, the form that DecoderConfig uses."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: low frequencies are divided by `factor`, high ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


def linear_divisors(factor: float, head_dim: int) -> tuple[float, ...]:
    """Position interpolation: every frequency is divided by the same factor."""
    return (factor,) * (head_dim // 2)


def llama3_divisors(scaling: Llama3Scaling, theta: float, head_dim: int) -> tuple[float, ...]:
    return tuple(_llama3_divisor(scaling, theta ** (-2.0 * i / head_dim)) for i in range(head_dim // 2))


def _llama3_divisor(scaling: Llama3Scaling, frequency: float) -> float:
    waves = scaling.original_context * frequency / (2 * math.pi)  # full turns over the original context
    if waves > scaling.high_freq_factor:
        return 1.0
    if waves < scaling.low_freq_factor:
        return scaling.factor
    blend = (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return 1.0 / ((1.0 - blend) / scaling.factor + blend)
