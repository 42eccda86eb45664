"""Division by what may be zero: nothing drafted, no rounds, no time on a coarse clock."""

from __future__ import annotations


def ratio(part: float, whole: float) -> float:
    """`part / whole`; 0 if `whole` is 0."""
    return part / whole if whole else 0.0
