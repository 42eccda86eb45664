"""Counter-based noise: the same (seed, position, token) gives the same number, on any device, in any order.

The generator is SplitMix64 used as a hash: one stream per (seed, position, domain), one draw per token id. Draws keep
no state, so numbers are only computed for tokens that can win.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
import numpy.typing as npt

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_SHIFT_A, _SHIFT_B, _SHIFT_C = np.uint64(30), np.uint64(27), np.uint64(31)
_MULTIPLY_A, _MULTIPLY_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_TO_UNIT = 2.0**-32
MOST_NOISE = 22.874  # that of the largest number, rounded up


class Domain(IntEnum):
    """Independent families of noise for one seed."""

    TARGET = 0  # the target's choice, and a coupled draft's
    DRAFT = 1  # an uncoupled draft's own choice
    ACCEPT = 2  # the rejection verifier's coins


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def stream_key(seed: int, position: int, domain: Domain = Domain.TARGET) -> int:
    """The key for the numbers of one position."""
    key = _mix((seed + _GOLDEN) & _MASK)
    key = _mix((key + position * _GOLDEN) & _MASK)
    return _mix((key + int(domain) * _GOLDEN) & _MASK)


def stream_keys(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`stream_key` of the target's domain for many streams at once."""
    golden = np.uint64(_GOLDEN)
    with np.errstate(over="ignore"):
        return _mixed(_mixed(_mixed(seeds + golden) + positions * golden))


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """In place: for a whole vocabulary, new memory in each step takes longer than the step."""
    shifted = np.empty_like(x)
    for shift, multiply in ((_SHIFT_A, _MULTIPLY_A), (_SHIFT_B, _MULTIPLY_B), (_SHIFT_C, _ONE)):
        np.right_shift(x, shift, out=shifted)
        x ^= shifted
        x *= multiply
    return x


def hash32(
    seed: int, position: int, tokens: npt.NDArray[np.int64], domain: Domain = Domain.TARGET
) -> npt.NDArray[np.uint64]:
    """A 32-bit number for each token id, as uint64."""
    key = np.uint64(stream_key(seed, position, domain))
    x = tokens.astype(np.uint64)
    with np.errstate(over="ignore"):
        x += _ONE
        x *= np.uint64(_GOLDEN)
        x += key
        x = _mixed(x)
    x >>= np.uint64(32)
    return x


def gumbel_of(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise from 32-bit numbers; grows with the number."""
    uniform = (numbers.astype(np.float64) + 0.5) * _TO_UNIT
    return -np.log(-np.log(uniform))


def gumbel(
    seed: int, position: int, tokens: npt.NDArray[np.int64], domain: Domain = Domain.TARGET
) -> npt.NDArray[np.float64]:
    return gumbel_of(hash32(seed, position, tokens, domain))


def token_noise(seed: int, position: int, token: int) -> float:
    """`gumbel` of one token, for the target's choice."""
    return -math.log(-math.log(uniform(seed, position, token, Domain.TARGET)))


def uniform(seed: int, position: int, index: int, domain: Domain = Domain.ACCEPT) -> float:
    """One number in (0, 1)."""
    number = _mix((stream_key(seed, position, domain) + (index + 1) * _GOLDEN) & _MASK) >> 32
    return (number + 0.5) * _TO_UNIT


def coupled_argmax(
    z: npt.NDArray[np.float64], tokens: npt.NDArray[np.int64], seed: int, position: int, domain: Domain = Domain.TARGET
) -> int:
    """The token id that maximises z + gumbel: one exact sample of softmax(z). Ties go to the lower id."""
    ids, values = coupled_contenders(z, tokens, seed, position, domain)
    return int(ids[int(values.argmax())])


def coupled_contenders(
    z: npt.NDArray[np.float64], tokens: npt.NDArray[np.int64], seed: int, position: int, domain: Domain = Domain.TARGET
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The ids that z + gumbel may choose, and its values for them.

    Logarithms are computed only for tokens that can still win: a token 8 below the best needs noise that only one
    number in three thousand gives, and the number itself shows that.
    """
    numbers = hash32(seed, position, tokens, domain)
    best = int(z.argmax())
    floor = float(z[best] + gumbel_of(numbers[best : best + 1])[0])  # the value that a winner has to exceed
    likely = (z >= z[best] - 8.0) | (numbers >= _number_for(max(floor - float(z[best]) + 8.0, -2.0)))
    rows = np.flatnonzero(likely)
    return tokens[rows], z[rows] + gumbel_of(numbers[rows])


def _number_for(noise: float) -> np.uint64:
    """The smallest 32-bit number whose Gumbel noise reaches `noise`, less a margin for rounding."""
    unit = float(np.exp(-np.exp(-noise)))
    return np.uint64(max(0, int(unit / _TO_UNIT) - 2))
