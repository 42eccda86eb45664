"""The last run in a log: where it begins, when the engine was ready, and until when it certainly worked.

What came after decides: a failure before an engine was ready, or before its next answer, is history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slipstream.parsing.log_patterns import Phase, StartLog
from slipstream.parsing.log_scan import hits, in_user_text, line_at

_MAX_TRIES = 10_000  # lines to look at for one with several texts


@dataclass(frozen=True, slots=True)
class LastRun:
    """Places in the log. `begin` is 0 if the log does not show the beginning."""

    begin: int = 0
    has_beginning: bool = False
    ready: int | None = None  # the first line that shows the engine ready or at work
    worked: int = 0  # the last such line; `begin` without one

    def phases(self, at: int) -> tuple[Phase, ...]:
        """Those that a place may be in: of a log without any mark both."""
        if self.ready is not None:
            return ("start",) if at < self.ready else ("serving",)
        return ("start",) if self.has_beginning else ("start", "serving")


def last_run(text: str, starts: Iterable[StartLog]) -> LastRun:
    """By the marks of the engines whose log it may be."""
    starts = list(starts)
    begins = [at for start in starts if (at := _beginning(text, start)) >= 0]
    begin = max(begins, default=0)
    signs = [texts for start in starts for texts in (*((mark,) for mark in start.ready), *start.works)]
    idle = [at for start in starts for mark in start.idle if (at := next(_places(text, (mark,), begin), -1)) >= 0]
    first = [at for texts in signs if (at := next(_places(text, texts, begin), -1)) >= 0]
    last = [at for texts in signs if (at := _last_place(text, texts, begin)) >= 0]
    last += idle if begins else []  # after a start, the first idle line shows that it is ready; later ones show nothing
    return LastRun(begin, bool(begins), min([*first, *idle], default=None), max(last, default=begin))


def _beginning(text: str, start: StartLog) -> int:
    """Where the last start begins, or -1: each of its marks is in the log once a start."""
    found = [at for mark in start.first_marks if (at := _last_place(text, (mark,), 0)) >= 0]
    return min(found, default=-1)


def _places(text: str, texts: tuple[str, ...], start: int) -> Iterator[int]:
    for tries, hit in enumerate(hits(text, texts[0], None, start=start)):
        if all(one in hit.line for one in texts[1:]):
            yield hit.at
        if tries == _MAX_TRIES:
            return


def _last_place(text: str, texts: tuple[str, ...], start: int) -> int:
    """The last line with all of the texts, or -1."""
    at = text.rfind(texts[0], start)
    for _ in range(_MAX_TRIES):
        if at < 0 or (all(one in line_at(text, at) for one in texts[1:]) and not in_user_text(text, at)):
            return at
        at = text.rfind(texts[0], start, at)
    return -1
