"""Finds known lines in a log that may be huge: exact pieces by search, then one pattern on that line alone.

Time is linear in the log: `str.find` goes over it once for every piece, and patterns only see a window of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_QUOTE = 200  # characters of a line that are quoted
_REACH = 500  # characters before and after a hit that a pattern sees
_MAX_WINDOWS = 20  # windows that are looked at in one line
_MAX_MISSES = 50_000  # a piece in so many lines, without the rest of the pattern, is no sign of anything
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Hit:
    """A line of the log that matched: where it is, what it says, and the named groups of the pattern."""

    at: int  # where the piece was found
    line: str
    groups: dict[str, str]


def hits(text: str, piece: str, pattern: re.Pattern[str] | None, reach: int = _REACH) -> Iterator[Hit]:
    """The lines with `piece` that `pattern` matches (all of them without one), in the order of the log.

    A pattern sees its line only as far as `reach` characters before and after the piece.
    """
    at, windows, misses = text.find(piece), 0, 0
    while at >= 0 and misses < _MAX_MISSES:
        start, end, cut = _line_around(text, at, reach)
        found = pattern.search(text, start, end) if pattern else None
        if found or not pattern:
            groups = {name: value or "" for name, value in found.groupdict().items()} if found else {}
            yield Hit(at, line_at(text, at), groups)
        else:
            misses += 1
        windows = windows + 1 if cut else 0
        if windows == _MAX_WINDOWS:  # a line of megabytes: go on behind it
            end, windows = text.find("\n", end), 0
        at = text.find(piece, max(end, at + 1)) if end >= 0 else -1


def first_hit(text: str, pieces: tuple[str, ...], pattern: re.Pattern[str] | None) -> Hit | None:
    """The first line that holds one of the pieces and matches."""
    found = [hit for piece in pieces if (hit := next(hits(text, piece, pattern), None))]
    return min(found, key=lambda hit: hit.at, default=None)


def line_at(text: str, at: int) -> str:
    """The line around a place, without colours; of a very long one what is near."""
    start, end, _ = _line_around(text, at, _REACH)
    return _COLOURS.sub("", text[start:end]).strip()


def _line_around(text: str, at: int, reach: int) -> tuple[int, int, bool]:
    """Where the line (or what of it is in reach) begins and ends, and whether it goes on behind that."""
    start = text.rfind("\n", max(0, at - reach), at) + 1 or max(0, at - reach)
    newline = text.find("\n", at, at + reach)
    return (start, newline, False) if newline >= 0 else (start, min(len(text), at + reach), at + reach < len(text))


def quote(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= MAX_QUOTE else line[: MAX_QUOTE - 1] + "…"


class LineNumbers:
    """Numbers of lines, asked for in rising order: the log is counted through once."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._number = text, 0, 1

    def of(self, at: int) -> int:
        if at < self._at:
            return self._text.count("\n", 0, at) + 1
        self._number += self._text.count("\n", self._at, at)
        self._at = at
        return self._number
