"""The common beginning of two token lists, or of two texts."""

from __future__ import annotations


def common_prefix_length(a: list[int] | str, b: list[int] | str) -> int:
    """The length of the common beginning. Uses bisection, since slices compare at C speed."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit  # the first `low` are equal, the first `high` are not
    while low < high - 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
