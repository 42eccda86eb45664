"""Failures that no rule explains: the doctor quotes the last error of the log, and says that it does not know it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from slipstream.engines import EngineFolder
from slipstream.findings import Finding, rule
from slipstream.parsing.log_scan import Hit, without_colours

UNKNOWN = rule(
    "log-unknown",
    "unknown",
    "The log ends with an error that no rule explains",
    "This failure is not known: none of the {count} known failures of {engine} is in the log.",
    "Search the engine's issues for this line. Check models, machine and configuration with slipstream doctor --target "
    "MODEL --draft MODEL --config FILE. If you find the cause, report it, so that it becomes a rule.",
)
TAIL = 256_000  # characters at the end of a log in which the last error is looked for: some 2,000 lines, so that the
# tracebacks of all worker processes fit
LONGEST = 1_000  # characters of a line that are looked at

_ERROR = re.compile(
    r"(?:^|[^\w.])[\w.]*(?:Error|Exception)(?:\s*[:(]|$)|"
    r"Segmentation fault|core dumped|\bKilled\b|\bAborted\b|GGML_ASSERT|CUDA error|[Aa]ssertion .*failed|"
    r"terminate called|panic:|[Ff]atal error|"
    r"(?:^|[\s\]|:\"])(?:error|ERROR|E|FATAL|CRITICAL|[Ff]ailed to|[Cc]annot|[Uu]nable to|[Nn]ot supported|"
    r"[Uu]nsupported|[Ii]nvalid)\b"
)
_HARMLESS = re.compile(r"\b(?:WARNING|WARN|INFO|DEBUG|[Ii]gnore|[Ii]gnoring|unavailable)\b|^File ")
# They follow from an error before them.
_CONSEQUENCE = re.compile(
    r"root cause above|Engine core|EngineCore (?:failed|encountered)|exit(?:ed|ing)? (?:with|status|code)|"
    r"exiting due to|During handling of|Traceback \(most|SystemExit|resource_tracker|process died"
)


def last_error(
    text: str, engines: list[EngineFolder], num_known: int
) -> Iterator[tuple[Hit, Callable[[str], Finding]]]:
    """The last error after the engine was last ready. Nothing if there is none."""
    ready = [mark for engine in engines if engine.log for mark in engine.log.start.ready]
    start = max([len(text) - TAIL, *(text.rfind(mark) for mark in ready), 0])
    found: list[tuple[bool, int, str]] = []  # whether it is an error of its own, its place, its line
    at = start
    for line in text[start:].splitlines(keepends=True):
        shown = without_colours(line[:LONGEST]).strip()
        if _ERROR.search(shown) and not _HARMLESS.search(shown):
            found.append((_CONSEQUENCE.search(shown) is None, at, shown))
        at += len(line)
    if found:
        _, at, line = max(found)
        name = engines[0].facts.title if len(engines) == 1 else "the engines"
        yield Hit(at, line, {}), lambda evidence: UNKNOWN.finding(evidence, count=num_known, engine=name)
