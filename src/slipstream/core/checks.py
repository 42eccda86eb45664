"""Checks of a caller's arguments: the type and range of a number, with an error that names the field."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from slipstream.errors import UsageError


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """`value` as an int: numpy's and torch's integers too, but neither 1.5 nor True. Raises UsageError."""
    expected = f"a whole number, {least} or more" if most is None else f"a whole number from {least} to {most}"
    try:
        number = operator.index(value)
    except TypeError:
        raise wrong_value(name, value, expected) from None
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        raise wrong_value(name, value, expected)
    return number


def real_number(name: str, value: Any, least: float, most: float, expected: str) -> float:
    """`value` as a finite float between `least` and `most`. Raises UsageError, which says `expected`."""
    if isinstance(value, bool | str | bytes):
        raise wrong_value(name, value, expected)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong_value(name, value, expected) from None
    if not math.isfinite(number) or not least <= number <= most:
        raise wrong_value(name, value, expected)
    return number


def token_ids(name: str, value: Any) -> list[int]:
    """`value` as a list of ints: a list, a tuple, a 1-D array of numpy or torch. Raises UsageError."""
    expected = "token ids: a list, or a 1-D array, of whole numbers"
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise wrong_value(name, value, expected)
    items = list(value)
    if set(map(type, items)) <= {int}:  # nearly always: a fast check of thousands of them
        return items
    try:
        ids = [operator.index(item) for item in items]
    except TypeError:
        raise wrong_value(name, value, expected) from None
    if any(isinstance(item, bool) for item in items):
        raise wrong_value(name, value, expected)
    return ids


def wrong_value(name: str, value: object, expected: str) -> UsageError:
    """The error for a field with a wrong value. The value is shown with at most 80 characters."""
    try:
        shown = repr(value)
    except Exception as error:  # an int of thousands of digits, or an object whose repr is broken
        shown = f"a {type(value).__name__} that can't be shown ({type(error).__name__})"
    shown = shown if len(shown) <= 80 else shown[:80] + "…"
    return UsageError(f"{name} is {shown}; expected {expected}")
