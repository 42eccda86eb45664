"""Values that do not belong where they are put."""

from __future__ import annotations

import random
from typing import Any

ODD_NUMBERS = (0, 1, 2, 3, 7, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, 0.5, -0.0, 1e-320, 1e308,
    float("nan"),
    float("inf"), float("-inf"), "", "x", "0", "64", "nan", "true", "None", "\x00", "\x1b[31m", "[bold]",
    "{evidence}", "{}",
    "%s", "../../etc/passwd", "/dev/zero", "\ud800", "日本", "x" * 3_000_000, [], {}, [0], [None], [[]], {"": 0},
    {"a": {"b": []}},
    [1, 2, 3], ["a"] * 50_000, {str(i): i for i in range(20_000)},
)  # fmt: skip


def odd_value(rng: random.Random) -> Any:
    return rng.choice(ODD_VALUES)


def short(value: object, limit: int = 60) -> str:
    """A value in one line of a report."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**60:
        return f"an integer of {value.bit_length()} bits"
    text = ascii(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
