"""Failures that no rule explains: the doctor quotes the error that came first, and says that it does not know it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from slipstream.findings import rule
from slipstream.parsing.documents import output_blocks
from slipstream.parsing.log_scan import Hit, Located, in_user_text, message_of

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
_SOON = 8  # lines after an error in which a program may say how it continues: some libraries report a failure thrice
CALM_LINES = 10  # this many lines without an error show that the program continued after it


class Kind(IntEnum):
    """What a line says about the cause, from least to most."""

    CONSEQUENCE = 0  # of an error before it
    GENERAL = 1  # "failed to load model", an answer 500
    SAID = 2  # words of a failure in a line without a level
    END = 3  # a crash without words: a signal
    BARE = 4  # an exception without a message
    LOGGED = 5  # a line that is marked as an error
    CAUSE = 6  # an exception with its message, a failed assertion
    ROOT = 7  # what the program itself calls the cause of an exception


@dataclass(frozen=True, slots=True)
class ErrorLine:
    kind: Kind
    at: int
    line: str

    @property
    def is_fatal(self) -> bool:
        """Whether the program ended with it, and did not only print it."""
        return self.kind in (Kind.END, Kind.BARE, Kind.CAUSE, Kind.ROOT)

    @property
    def is_exception(self) -> bool:
        """Whether it is an exception with a message."""
        return self.kind == Kind.CAUSE and is_exception(self.line)


# The level of a line where it has a field for it: JSON, logfmt (Ollama), glog (`E0512 10:00:00.1 7 file.cc:9]`) and
# torch (`[W512 10:00:00.1 socket.cpp:755]`).
_LEVEL = re.compile(
    r"""(?:\b(?:level|lvl|severity)=|["'](?:level|severity|levelname|log\.level)["']:\s*)["']?(?P<field>[A-Za-z]+)|"""
    r"""(?:^|\[)(?P<glog>[EFIW])\d{3,4} \d\d:\d\d:"""
)
_CALM_LEVELS = ("info", "debug", "trace", "notice", "warn", "warning", "i", "w")
_ERROR_LEVELS = ("error", "eror", "err", "fatal", "crit", "critical", "panic", "alert", "emerg", "e", "f")
_HARMLESS = re.compile(
    r"\b(?:WARNING|(?<!NCCL )WARN|INFO|DEBUG|NOTICE|TRACE)\b|\[(?:warn|warning|info|debug)\]|(?:^|\s)[\d.]+ [WIDN] |"
    r"^File |[Ww]arning: |Exception ignored in|\b[Ii]gnor(?:e|ing) |\bexit(?:ed)?(?: with)? (?:code|status):? 0\b|"
    r"(?i:\b(?:no|0|zero|without|without any) "
    r"(?:errors?|failures?|segmentation faults?|out of memory|crash(?:es)?)\b|"
    r"\b(?:errors?|failed|failures?|error rate)\W{1,3}(?:0|none|null|false|nil)\b)|"
    r"\bwarn(?:ings\.warn)?\(|of pinned memory|[Uu]nable to register cu\w+ factory|"
    r"computation_placer already registered"
)
# Words of a line about a failure that does not end the program.
_MILD = re.compile(
    r"(?i)\b(?:instead|retry(?:ing)?|ignored?|unavailable|forcing off|fall(?:ing|s)? back|fallback|by default|"
    r"default(?:ing)? to|disabl(?:ed|ing)|skipp(?:ed|ing)|failed to fit params|failed to find a memory slot|is normal|"
    r"sub-?optimal|deprecated|optional|will be set|anyway|please set|can yield|may (?:not|be|cause|result|affect|lead)|"
    r"might|will use|using default|trying port|truncating|treating as|defaulting|reducing|not applied|turn off)\b"
)
# A line that says how the program continues without what failed.
RECOVERS = re.compile(
    r"(?i)\b(?:retrying (?:with|without|using)|trying again (?:with|without)|fall(?:ing|s)? back to|"
    r"(?:continuing|going on|proceeding) without)\b"
)
_CONSEQUENCE = re.compile(
    r"root cause above|\(above\) for the root cause|Engine core|EngineCore (?:failed|encountered|died)|EngineDeadError|"
    r"exit(?:ed|ing)? (?:with|status|code)|exits with code|exiting due to|SystemExit|resource_tracker|process died|"
    r"leaked (?:semaphore|shared_memory)|BrokenPipeError|ConnectionResetError|EOFError|CancelledError|"
    r"KeyboardInterrupt|Exception in worker(?! \w+ while processing method \w+: \w)|"
    r"server exited before|to find the original error|CrashLoopBackOff|"
    r"Back-off restarting|Failed with result|usually means the child failed|Main process exited"
)
# What a user does to end a program, and what follows from that.
_STOPPED = re.compile(r"KeyboardInterrupt|\bSIG(?:INT|TERM)\b|\^C")
_AFTER_STOP = re.compile(
    r"KeyboardInterrupt|CancelledError|SystemExit|resource_tracker|leaked (?:semaphore|shared_memory)|EOFError|"
    r"BrokenPipeError|\bSIG(?:INT|TERM)\b"
)
_GENERAL = re.compile(
    r"(?i)(?:failed|unable|error) (?:to )?(?:load(?:ing)?|create|open|initiali[sz]e)(?: the| draft)? ?"
    r"(?:model|context|llama[ _]context|llama server)(?! architecture)(?:[.,'\"\s]|$)|model loading error|"
    r"error loading model\.?$|failed to load model from|output_handler failed|Application startup failed|"
    r"\braise [\w.]+\(|validation errors? for \w+$|^\s*Aborting\b|Received load-error|terminate called after throwing|"
    r"failed to start\. See stack trace|"
    r"(?:Engine|Scheduler|Detokenizer|Worker)\b.{0,40}\b(?:failed to start|hit an exception)"
)
# An answer to a request: uvicorn, gin, llama-server. 503 is what a server answers while it loads.
_SERVER_ERROR = re.compile(r"\"POST \S+ HTTP/[\d.]+\" 50[0124]\b|\| 50[0124] \|.*\bPOST\b|request: POST .* 50[0124]$")
_EXCEPTION = re.compile(
    r"(?:^|[\s\]|:'\"])(?:\w+\.)*\w*(?:Error|Exception|Failure|NotFound|Exit)(?::\s*(?P<said>\S.*)|$)|"
    r"^\s*(?:\(\w+ pid=\d+\) +)?(?P<value>Value error, .+)|"
    r"(?:^|[\s:])(?P<repr>\w+(?:Error|Exception)\(['\"].+)|"
    r"^\s*(?P<other>Uncaught (?!Exception:?$).+|Unhandled .+)"
)
_ROOT = re.compile(r"^\W*[Cc]aused [Bb]y: \S")
# A line of a traceback that a logger wrote: its own prefix, then the line with the spaces before it.
_LOGGED_FRAME = re.compile(
    r"\b(?:ERROR|CRITICAL|WARNING)\b.{0,80}?\]\s{3,}\S|^(?:.{0,160}\s)?File \"[^\"]+\", line \d+"
)
_CAUSE = re.compile(
    r"GGML_ASSERT|CUDA error|[Aa]ssertion .*failed|panicked at|[Ff]atal (?:Python )?(?:error|exception)|what\(\):|"
    r"error loading model: (?!failed)|failed to initialize the context: |requires flash_attn|"
    r"panic: (?!unable to (?:load|create))|failed to allocate|command buffer \d+ failed|"
    r"terminating due to uncaught exception|\bfatal\s?:|\w fatal +:|\bfatal error\b"
)
_END = re.compile(
    r"(?i:segmentation fault|\(core dumped\)|\bcore dump|bus error|illegal instruction|\bstack smashing detected|"
    r"double free or corruption|free\(\): invalid|corrupted size vs|munmap_chunk\(\)|malloc\(\): |trace trap|"
    r"access violation|floating point exception|stack overflow|pure virtual method called|abort was called|"
    r"(?:has|have|process|server|program|runner|engine|worker) (?:been )?(?:crashed|aborted)|"
    r"(?:died|ended|stopped|terminated|closed|quit|exited) unexpectedly|unexpectedly (?:died|stopped|closed|exited))|"
    r"\bKilled\b|\bOOMKilled\b|\bAborted\b|: (?:abort|killed) |terminate called|\bSIG(?:SEGV|ABRT|KILL|BUS|ILL|FPE)\b|"
    r"panic:|\bExit code: (?!0\b)|(?i:0xc0000(?:005|409|01d|0fd|374))|322122(?:5477|6505|5501|5725|6356)|"
    r"AddressSanitizer|EXC_BAD_ACCESS|goroutine \d+ \[running\]|exit(?:ed)? (?:with )?(?:code|status)[: ]+(?!0\b)-?\d"
)
# What systemd, Docker, supervisord and PM2 say of a program that ended, at any level; a user's stop is none.
_SUPERVISOR = re.compile(
    r"\(Result: (?!success\))[\w-]+\)|\bcode=\w+, (?:signal|status)=(?!0/|(?:\d+/)?(?:TERM|INT|HUP))|"
    r"\bExited \((?!(?:0|130|143)\))\d+\)|\bentered FATAL state|\btoo many (?:unstable restarts|start retries)|"
    r"\bterminated by SIG(?!TERM|INT|HUP)"
)
_LOGGED = re.compile(
    r"(?:^|[\s\]|:\"=])(?:error|Error|ERROR|ERR|E|FATAL|CRITICAL|SEVERE|[Ff]ailed to|FAILED|[Cc]annot|[Uu]nable to|"
    r"[Nn]ot supported|[Uu]nsupported|[Ii]nvalid)\b|\[(?:error|ERROR|fatal|FATAL|CRITICAL|E)\]|^ERR!|❌"
)
_SAID = re.compile(
    r"(?i)\b(?:could not|couldn't|can't|unexpectedly|does not (?:match|exist)|(?:is|are) (?:not compatible|"
    r"incompatible|missing|corrupt(?:ed)?)|incompatible|not enough|insufficient|(?:connection|access|permission) "
    r"(?:was )?(?:refused|denied)|timed out|timeout (?:after|exceeded|expired)|(?:has )?crashed|no such (?:file|option|"
    r"command|device)|command not found|out of memory|giving up|gave up|mismatch|not responding|deadlock|task error|"
    r"(?:did not|didn't|never) (?:finish|start|respond|become ready|complete)\w*|unexpected failures?)\b"
)
_KINDS = ((_CONSEQUENCE, Kind.CONSEQUENCE), (_GENERAL, Kind.GENERAL), (_CAUSE, Kind.CAUSE))
_TRACEBACK = "Traceback (most recent call last)"
_REPLACES = "During handling of the above exception"  # the exception before it was caught, and put in other words
_FOLLOWS = "exception was the direct cause"  # of the one after it
_CALM = re.compile(r"\b(?:INFO|DEBUG)\b|^[\d.]+ I ")
_HEADING = re.compile(r"\[(?:ERROR|error)\]:?$")  # LM Studio: the message is in the next line
_NEGATION_REACH = 60  # characters
_NEGATION = re.compile(r"(?i)(?<![\w'-])(?:no|without|never|not an?y?)(?: [a-z]+){0,2} \w*$")
_METRIC = re.compile(  # a page of Prometheus
    r"^# (?:HELP|TYPE) \w|^[a-z][\w:]*\{[^}]*\} [\d.eE+-]+$|^[a-z]+[:_]\w*_\w+ [\d.eE+-]+$"
)
_NO_MESSAGE = re.compile(r"(?:^|[\]|]|\b(?:ERROR|CRITICAL|FATAL)\b:?)\s*$")  # of a logger before a traceback
_ASSERT = re.compile(r"(?:^|\s)assert \S")


def kind_of(line: str) -> Kind | None:
    """What a line, without colours, says of a failure; None for one that is no error."""
    line, traceback, _ = line.partition(_TRACEBACK)  # a logger may write the message before it
    if traceback and _NO_MESSAGE.search(line):
        return None
    if _METRIC.search(line):
        return None
    if _SERVER_ERROR.search(line):
        return Kind.GENERAL
    if _SUPERVISOR.search(line) and not _CONSEQUENCE.search(line):
        return Kind.END
    level = _level_of(line)
    if level in _CALM_LEVELS or _HARMLESS.search(line) or _LOGGED_FRAME.search(line):
        return None
    if _ROOT.search(line):
        return Kind.ROOT
    kind = next((kind for pattern, kind in _KINDS if pattern.search(line)), None)
    if kind is not None:
        return kind
    if found := _EXCEPTION.search(line):
        return Kind.CAUSE if any(found.groupdict().values()) else Kind.BARE
    if _END.search(line):
        return Kind.END
    if level in _ERROR_LEVELS:
        return Kind.LOGGED
    return _by_words(line)


def _by_words(line: str) -> Kind | None:
    if _MILD.search(line):
        return None
    if _LOGGED.search(line):
        return Kind.LOGGED
    said = _SAID.search(line)
    return Kind.SAID if said and not is_negated(line, said.start()) else None


def is_negated(text: str, at: int) -> bool:
    """Whether the words of the line right before a place deny what follows: "no", "without any"."""
    return bool(_NEGATION.search(text[max(0, at - _NEGATION_REACH) : at]))


def _level_of(line: str) -> str:
    found = _LEVEL.search(line)
    return (found["field"] or found["glog"]).lower() if found else ""


def most_telling(errors: list[ErrorLine]) -> ErrorLine | None:
    """The line that tells most about a failure; the first such line of several."""
    return max(errors, key=lambda error: (error.kind, -error.at), default=None)


def last_errors(text: str, start: int) -> list[ErrorLine]:
    """The error lines of the last failure after `start`: before them the program worked for some lines."""
    reader, blocks = _Reader(), output_blocks(text)
    at = start = max(start, len(text) - TAIL)
    for line in text[start:].splitlines(keepends=True):
        if blocks is None or any(first <= at < last for first, last in blocks):
            reader.read(at, message_of(line[:LONGEST]), text)
        at += len(line)
    errors = reader.finish()
    return errors if blocks is None else [error for error in errors if error.kind >= Kind.END]  # else it may be prose


class _Reader:
    """Collects the errors of a log line by line."""

    def __init__(self) -> None:
        self._errors: list[ErrorLine] = []
        self._calm = 0  # lines since the last one of a failure
        self._statement = ""  # the last `assert` that a traceback showed
        self._is_cause_known = self._is_ignored = False  # whether the next exception tells nothing new
        self._is_rewording = False  # whether the next exception tells more than the one before it
        self._last: tuple[int, str] | None = None  # a traceback whose end is missing: its last line
        self._is_headed = False  # whether the line before said only that an error follows
        self._has_recovered = self._is_stopped = False
        self._is_warned = False  # whether the line before said only that a warning follows

    def read(self, at: int, line: str, text: str) -> None:
        if _TRACEBACK in line or self._last:
            self._last = (at, line) if line else self._last
        self._is_rewording |= _REPLACES in line
        self._is_cause_known |= _FOLLOWS in line
        self._is_ignored |= line.startswith("Exception ignored in")
        if statement := _ASSERT.search(line):
            self._statement = line[statement.start() :].strip()
        self._follow(line)
        kind = self._kind_here(line)
        if kind is None or in_user_text(text, at + len(line)):
            self._calm += bool(_CALM.search(line))
            return
        self._add(kind, at, line)

    def _follow(self, line: str) -> None:
        """Errors are history once a line follows the one that says how it works on without what failed."""
        if self._has_recovered and line:
            self._errors, self._has_recovered = [], False
        self._has_recovered |= bool(RECOVERS.search(line))
        self._is_stopped |= bool(_STOPPED.search(line))

    def _kind_here(self, line: str) -> Kind | None:
        if self._is_warned and line:
            self._is_warned = False
            return None
        self._is_warned |= line.endswith("Warning:")
        if _HEADING.search(line):
            self._is_headed = True
            return None
        kind, is_headed = kind_of(line), self._is_headed and bool(line)
        self._is_headed &= not is_headed
        if self._is_stopped and _AFTER_STOP.search(line):
            self._last = None
            return None
        return Kind.LOGGED if is_headed and kind is None and not _MILD.search(line) else kind

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
        if self._is_stopped:
            self._errors = [error for error in self._errors if not _AFTER_STOP.search(error.line)]
        if self._last:  # the log ends in a traceback
            self._errors.append(ErrorLine(Kind.GENERAL, *self._last))
        return self._errors


def unknown(error: ErrorLine, engine: str, num_known: int, verbose: str) -> Located:
    """The finding that quotes it. `verbose`: a setting that makes the engine print more, or nothing."""
    more = f"Start it again with {verbose}, and read the lines before the error. " if verbose else ""
    return Located(Hit(error.at, error.line, {}), UNKNOWN.finding(count=num_known, engine=engine, verbose=more))


def is_survived(text: str, at: int) -> bool:
    """Whether a line soon after a place says how the program works on without what failed there, and more follows."""
    following = text[at : at + LONGEST * _SOON].splitlines()[1 : _SOON + 2]
    return any(
        RECOVERS.search(line[:LONGEST]) and any(after.strip() for after in following[i + 1 :])
        for i, line in enumerate(following)
    )


def is_exception(line: str) -> bool:
    return bool(_EXCEPTION.search(line))


def is_consequence(line: str) -> bool:
    return bool(_CONSEQUENCE.search(line))


def speaks_of_earlier(text: str, start: int) -> bool:
    """Whether lines from `start` on speak of a failure before them."""
    lines = (line[:LONGEST] for line in text[max(start, len(text) - TAIL) :].splitlines())
    return any(_CONSEQUENCE.search(line) and not _HARMLESS.search(line) and not _STOPPED.search(line) for line in lines)
