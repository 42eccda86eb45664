"""Failures that no rule explains: the doctor quotes the error that came first, and says that it does not know it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from slipstream.findings import Finding, rule
from slipstream.parsing.log_scan import Hit, in_user_text, without_colours

UNKNOWN = rule(
    "log-unknown",
    "unknown",
    "The log ends with an error that no rule explains",
    "This failure is not known. Ruled out: the {count} known failures of {engine}.",
    "{verbose}Check models, machine and configuration: slipstream doctor --target MODEL --draft MODEL --config FILE. "
    "Search the engine's issues for the quoted line. If you find the cause, report it, so that it becomes a rule.",
)
TAIL = 256_000  # characters at the end of a log in which the error is looked for: some 2,000 lines, so that the
# tracebacks of all worker processes fit
LONGEST = 1_000  # characters of a line that are looked at
CALM_LINES = 10  # so many lines without an error show that the program went on after it


class Kind(IntEnum):
    """What a line says about the cause, from least to most."""

    CONSEQUENCE = 0  # of an error before it
    GENERAL = 1  # "failed to load model"
    END = 2  # a crash without words: a signal
    BARE = 3  # an exception without a message
    LOGGED = 4  # a line that is marked as an error
    CAUSE = 5  # an exception with its message, a failed assertion


@dataclass(frozen=True, slots=True)
class ErrorLine:
    kind: Kind
    at: int
    line: str

    @property
    def is_fatal(self) -> bool:
        """Whether the program ended with it, and did not only print it."""
        return self.kind in (Kind.END, Kind.BARE, Kind.CAUSE)


_HARMLESS = re.compile(
    r"\b(?:WARNING|WARN|INFO|DEBUG)\b|(?:^|\s)[\d.]+ [WIDN] |^File |[Ww]arning: |Exception ignored in|"
    r"\b[Ii]gnor(?:e|ing) |\bexit(?:ed)?(?: with)? (?:code|status):? 0\b"
)
# It goes on without what failed.
_MILD = re.compile(
    r"(?i)\b(?:instead|retry(?:ing)?|ignored?|unavailable|forcing off|fall(?:ing|s)? back|default(?:ing)? to|"
    r"disabl(?:ed|ing)|skipp(?:ed|ing)|failed to fit params|failed to find a memory slot|is normal)\b"
)
_CONSEQUENCE = re.compile(
    r"root cause above|\(above\) for the root cause|Engine core|EngineCore (?:failed|encountered|died)|EngineDeadError|"
    r"exit(?:ed|ing)? (?:with|status|code)|exits with code|exiting due to|SystemExit|resource_tracker|process died|"
    r"leaked (?:semaphore|shared_memory)|BrokenPipeError|ConnectionResetError|EOFError|CancelledError|"
    r"KeyboardInterrupt|Exception in worker|server exited before"
)
_GENERAL = re.compile(
    r"(?i)(?:failed|unable|error) (?:to )?(?:load(?:ing)?|create|open|initiali[sz]e)(?: the| draft)? ?"
    r"(?:model|context|llama context|llama server)(?! architecture)(?:[.,'\"\s]|$)|model loading error|"
    r"error loading model\.?$|failed to load model from|output_handler failed|Application startup failed|"
    r"\braise [\w.]+\(|validation errors? for \w+$"
)
_EXCEPTION = re.compile(
    r"(?:^|[\s\]|:'\"])(?:\w+\.)*\w*(?:Error|Exception|Failure|NotFound|Exit)(?::\s*(?P<said>\S.*)|$)|"
    r"^\s*(?:\(\w+ pid=\d+\) +)?(?P<value>Value error, .+)"
)
_CAUSE = re.compile(
    r"GGML_ASSERT|CUDA error|[Aa]ssertion .*failed|panicked at|[Ff]atal (?:Python )?error|what\(\):|"
    r"error loading model: (?!failed)|failed to initialize the context: |requires flash_attn|"
    r"panic: (?!unable to (?:load|create))|failed to allocate"
)
_END = re.compile(
    r"Segmentation fault|core dumped|\bKilled\b|\bAborted\b|terminate called|\bSIG(?:SEGV|ABRT|KILL|BUS|ILL)\b|panic:|"
    r"Bus error|Illegal instruction|\bExit code: (?!0\b)"
)
_LOGGED = re.compile(
    r"(?:^|[\s\]|:\"=])(?:error|Error|ERROR|E|FATAL|CRITICAL|[Ff]ailed to|[Cc]annot|[Uu]nable to|[Nn]ot supported|"
    r"[Uu]nsupported|[Ii]nvalid)\b"
)
_KINDS = ((_CONSEQUENCE, Kind.CONSEQUENCE), (_GENERAL, Kind.GENERAL), (_CAUSE, Kind.CAUSE))
_TRACEBACK = "Traceback (most recent call last)"
_REPLACES = "During handling of the above exception"  # the exception before it was caught, and put in other words
_FOLLOWS = "exception was the direct cause"  # of the one after it
_CALM = re.compile(r"\b(?:INFO|DEBUG)\b|^[\d.]+ I ")
_ASSERT = re.compile(r"(?:^|\s)assert \S")


def kind_of(line: str) -> Kind | None:
    """What a line, without colours, says of a failure; None for one that is no error."""
    if _HARMLESS.search(line) or _TRACEBACK in line:
        return None
    kind = next((kind for pattern, kind in _KINDS if pattern.search(line)), None)
    if kind is not None:
        return kind
    if found := _EXCEPTION.search(line):
        return Kind.CAUSE if found["said"] or found["value"] else Kind.BARE
    if _END.search(line):
        return Kind.END
    return Kind.LOGGED if _LOGGED.search(line) and not _MILD.search(line) else None


def most_telling(errors: list[ErrorLine]) -> ErrorLine | None:
    """The line that tells most about a failure; the first such line of several."""
    return max(errors, key=lambda error: (error.kind, -error.at), default=None)


def last_errors(text: str, start: int) -> list[ErrorLine]:
    """The error lines of the last failure after `start`: before them the program worked for some lines."""
    reader = _Reader()
    at = start = max(start, len(text) - TAIL)
    for line in text[start:].splitlines(keepends=True):
        reader.read(at, without_colours(line[:LONGEST]).strip(), text)
        at += len(line)
    return reader.finish()


class _Reader:
    """Collects the errors of a log line by line."""

    def __init__(self) -> None:
        self._errors: list[ErrorLine] = []
        self._calm = 0  # lines since the last one of a failure
        self._statement = ""  # the last `assert` that a traceback showed
        self._is_cause_known = self._is_ignored = False  # whether the next exception tells nothing new
        self._is_rewording = False  # whether the next exception tells more than the one before it
        self._last: tuple[int, str] | None = None  # a traceback whose end is missing: its last line

    def read(self, at: int, line: str, text: str) -> None:
        if _TRACEBACK in line or self._last:
            self._last = (at, line) if line else self._last
        self._is_rewording |= _REPLACES in line
        self._is_cause_known |= _FOLLOWS in line
        self._is_ignored |= line.startswith("Exception ignored in")
        if _ASSERT.search(line):
            self._statement = line
        kind = kind_of(line)
        if kind is None or in_user_text(text, at + len(line)):
            self._calm += bool(_CALM.search(line))
            return
        self._add(kind, at, line)

    def _add(self, kind: Kind, at: int, line: str) -> None:
        if self._calm >= CALM_LINES:
            self._errors = []
        self._calm = 0
        if kind in (Kind.BARE, Kind.CAUSE) and _EXCEPTION.search(line):
            if self._is_cause_known or self._is_ignored:
                kind = Kind.CONSEQUENCE
            if self._is_rewording and kind == Kind.CAUSE:
                self._errors = [error for error in self._errors if error.kind < Kind.BARE]
            self._is_cause_known = self._is_ignored = self._is_rewording = False
            self._last = None
        if kind == Kind.BARE and self._statement:
            line = f"{self._statement} … {line}" if len(self._statement) < LONGEST // 8 else line
        self._errors.append(ErrorLine(kind, at, line))

    def finish(self) -> list[ErrorLine]:
        if self._last:  # the log ends in a traceback
            self._errors.append(ErrorLine(Kind.GENERAL, *self._last))
        return self._errors


def unknown(error: ErrorLine, engine: str, num_known: int, verbose: str) -> tuple[Hit, Callable[[str], Finding]]:
    """The finding that quotes it. `verbose`: a setting that makes the engine print more, or nothing."""
    more = f"Start it again with {verbose}, and read the lines before the error. " if verbose else ""

    def make(evidence: str) -> Finding:
        return UNKNOWN.finding(evidence, count=num_known, engine=engine, verbose=more)

    return Hit(error.at, error.line, {}), make


def speaks_of_earlier(text: str, start: int) -> bool:
    """Whether lines from `start` on speak of a failure before them."""
    lines = (line[:LONGEST] for line in text[max(start, len(text) - TAIL) :].splitlines())
    return any(_CONSEQUENCE.search(line) and not _HARMLESS.search(line) for line in lines)
