"""Finds known lines in a log that may be very large: searches for exact texts, then applies a pattern to that line
only.

Time is linear in the size of the log: `str.find` scans it once per text, and patterns see only a window of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.findings import Finding
from slipstream.parsing.log_index import SignIndex

_REACH = 500  # characters before and after a hit that a pattern sees
_MAX_WINDOWS = 20  # windows to check in one line
_MAX_MISSES = 50_000  # give up after this many lines with the text but without a pattern match
_HEAD = 500  # characters at the beginning of a line that show what the line is
_FAR = 1_000_000  # characters before a place in which its line begins; a prompt may be as long
# What a user wrote or a model answered, in the log of a request: an error message in it is no error.
_USER_TEXT = re.compile(
    r"""["'](?:content|prompt|text|input|arguments)\\?["']\s*:|\b(?:[Pp]rompt|[Tt]ext|output)\s*[:=]\s*(?:"(?!")|'(?!'))|"""
    r"""^(?:Input|Output|Prompt|Answer|User|Assistant):\s|<\|im_start\|>|<\|user\|>"""
)
# A progress bar (tqdm, rich) without the end of its line: what follows it is another line.
_BAR = re.compile(
    r"^[^\n]{0,200}?\d%(?:\|[^|\n]{0,200}\| ?[^\]\n]{0,80}\]| +[\d:.-]+ +[\d:-]+) ?(?=[A-Za-z(\[][\w ]{3})"
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching line of the log: its place, its text, and the named groups of the pattern."""

    at: int  # where the piece was found
    line: str
    groups: dict[str, str]


@dataclass(frozen=True, slots=True)
class Located:
    """A finding whose evidence is not filled in yet, and the line of the log it is about."""

    hit: Hit
    finding: Finding

    @property
    def blocks(self) -> bool:
        return self.finding.severity == "blocks"


def hits(
    text: str, piece: str, pattern: re.Pattern[str] | None, start: int = 0, index: SignIndex | None = None
) -> Iterator[Hit]:
    """The lines with `piece` that `pattern` matches (all of them without one), in the order of the log.

    A pattern sees only `_REACH` characters of the line before and after the piece. Prompts and answers are skipped.
    `index`, of the same text, makes it fast to look for many pieces.
    """
    find = (index or text).find
    at, windows, misses = find(piece, start), 0, 0
    while at >= 0 and misses < _MAX_MISSES:
        begin, end, cut = _line_around(text, at)
        found = pattern.search(text, begin, end) if pattern else None
        if (found or not pattern) and not in_user_text(text, at):
            groups = {name: value or "" for name, value in found.groupdict().items()} if found else {}
            yield Hit(at, line_at(text, at), groups)
        else:
            misses += 1
        windows = windows + 1 if cut else 0
        if windows == _MAX_WINDOWS:  # a line of megabytes: skip the rest
            end, windows = text.find("\n", end), 0
        at = find(piece, max(end, at + 1)) if end >= 0 else -1


def first_hit(text: str, pieces: tuple[str, ...], pattern: re.Pattern[str] | None, start: int = 0) -> Hit | None:
    """The first line from `start` on that has one of the pieces and matches."""
    found = [hit for piece in pieces if (hit := next(hits(text, piece, pattern, start=start), None))]
    return min(found, key=lambda hit: hit.at, default=None)


def in_user_text(text: str, at: int) -> bool:
    """Whether a place is in a prompt or an answer that the log quotes."""
    begin = text.rfind("\n", max(0, at - _FAR), at) + 1 or max(0, at - _FAR)
    near = max(begin, at - _HEAD)
    return bool(_USER_TEXT.search(text[begin : min(at, begin + _HEAD)]) or _USER_TEXT.search(text[near:at]))


def line_at(text: str, at: int) -> str:
    """The line at a position, without colour codes; for a very long line, the part near the position."""
    start, end, _ = _line_around(text, at)
    return message_of(text[start:end])


def message_of(line: str) -> str:
    """A line without colours, and without the progress bar that it is glued to."""
    return _BAR.sub("", without_colours(line)).strip()


def without_colours(text: str) -> str:
    return _COLOURS.sub("", text)


def _line_around(text: str, at: int) -> tuple[int, int, bool]:
    """The start and end of the line (or of the part in reach), and whether it continues after that."""
    first, last = max(0, at - _REACH), at + _REACH
    start = max(text.rfind("\n", first, at), text.rfind("\r", first, at)) + 1 or first
    ends = [end for end in (text.find("\n", at, last), text.find("\r", at, last)) if end >= 0]
    return (start, min(ends), False) if ends else (start, min(len(text), last), last < len(text))
