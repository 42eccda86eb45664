"""Logs: explains known failures by their cause, hangs by the last stage reached, slow runs by their numbers.

A log is judged in order, and what came after decides. Only its last run counts. What blocks counts if nothing after it
shows the engine ready or at work; what slows counts if it is anywhere in the run. A lost draft slows an engine that
works on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from slipstream.diagnosis.log_figures import accepts_drafts
from slipstream.diagnosis.log_signs import refused_requests, without_failure
from slipstream.diagnosis.log_slow import slow_runs
from slipstream.diagnosis.log_stages import unfinished_start
from slipstream.diagnosis.log_unknown import (
    ErrorLine,
    Kind,
    is_consequence,
    is_exception,
    is_negated,
    is_survived,
    kind_of,
    last_errors,
    most_telling,
    speaks_of_earlier,
    unknown,
)
from slipstream.engines import EngineFolder, find_folder, folders
from slipstream.findings import Finding, Severity, blocks
from slipstream.parsing.config_checks import shorten
from slipstream.parsing.failure_files import read_failures
from slipstream.parsing.log_index import SignIndex
from slipstream.parsing.log_patterns import Pattern, StartLog
from slipstream.parsing.log_platforms import platforms_in
from slipstream.parsing.log_reading import Log, condensed
from slipstream.parsing.log_runs import LastRun, last_run
from slipstream.parsing.log_scan import Hit, Located, first_hit, hits, line_at

ANY_ENGINE = read_failures(Path(__file__).with_name("failures"))  # what any engine may print
_BEFORE_END = 64_000  # characters before the last answer in which the cause of a later end may be
_SHORTLY = 2_000  # characters before the last answer in which the cause of a later end is, if it names none itself
_TRACEBACK = 32_000  # characters before an exception in which its traceback begins
_MAX_BETTER = 20  # lines of the same kind to look at for one that tells more
_CODE = re.compile(r"\braise [\w.]+\(")
_FRAME = re.compile(r'File "[^"\n]+", line \d+, in ')
_RAISED = re.compile(r"(?m)^(?:\w+\.)*\w+(?:Error|Exception)\b.*$")
# How uvicorn and TabbyAPI log what is no error, prompts too; and the first level in a line.
_NO_FAILURE = re.compile(r"\b(?:INFO|DEBUG):\s")
_LEVEL = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|(?<!NCCL )WARN(?:ING)?|\w*Warning|(?<![=\w])INFO)\b")
# The line itself says how the program goes on.
_GOES_ON = re.compile(
    r"(?i)\bfall(?:ing)? back to\b|\btrying port\b|\btruncating\b|\bwill be skipped\b|\bcontinuing (?:to|without)\b|"
    r"\bfor auto-detection\b"
)
_TABLE_ROW = re.compile(r"\s*\|(?:[^|]+\|){2,}\s*$")
_BEFORE_THE_ERROR = "The log says this before the error that ends it; it may be the cause or not."
_WITHOUT_DRAFT = "The engine works, without the draft."
_FORM = re.compile(r"_\d$")
_NO_FAILURE_LEVELS = ("WARN", "WARNING", "INFO")


@dataclass(frozen=True, slots=True)
class LogReport:
    """What was found in a log, and what was looked for."""

    findings: list[Finding]
    engines: tuple[str, ...]  # titles of those whose rules were applied
    is_certain: bool  # whether the log is known to be from these engines
    num_rules: int
    num_lines: int
    num_skipped: int = 0  # bytes in the middle that were not read, and their lines not counted

    @property
    def checked(self) -> str:
        """In a few words."""
        whose = " and ".join(self.engines) if self.is_certain else "all engines, since the log names none"
        lines = "1 line" if self.num_lines == 1 else f"{self.num_lines:,} lines"
        left_out = f" ({self.num_skipped / 1e9:,.1f} GB in the middle left out)" if self.num_skipped else ""
        return f"{lines} of log{left_out} with {self.num_rules} rules for {whose}"


def explain(text: str, engine: str | None = None) -> list[Finding]:
    """The problems that a log shows, in the order of the log, each with its line.

    An error that no rule explains is quoted as unknown. With `engine`, failures of other engines are skipped.
    """
    return _Judgement(condensed(text, marks_to_keep()), engine).failures


def judge(log: Log, engine: str | None = None, likely: str | None = None) -> LogReport:
    """What `explain` finds, and for a log without a failure whether it shows the engine at work.

    With `engine`, failures of other engines are skipped; without, the log's own marks decide whose it is, and
    `likely` where it has none.
    """
    judgement = _Judgement(log, engine, likely)
    titles = tuple(one.facts.title for one in judgement.engines if one.log)
    return LogReport(
        findings=judgement.findings(),
        engines=titles,
        is_certain=judgement.is_certain,
        num_rules=len(judgement.patterns),
        num_lines=log.num_lines,
        num_skipped=log.num_skipped,
    )


def marks_to_keep() -> list[str]:
    """Texts that decide how a log is judged."""
    starts = [folder.log.start for folder in folders() if folder.log]
    return [mark for start in starts for mark in (*start.first_marks, *start.ready)]


@dataclass
class _Judgement:
    """One log, and the engines that may have written it."""

    log: Log
    engine: str | None
    likely: str | None = None  # the engine where neither the user nor the log names one
    engines: list[EngineFolder] = field(init=False)
    is_certain: bool = field(init=False)  # whether the log is known to be from these engines

    def __post_init__(self) -> None:
        found = [find_folder(self.engine)] if self.engine else _engines_by_marks(self.log.text)
        found = found or ([find_folder(self.likely)] if self.likely else [])
        self.is_certain = bool(found)
        self.engines = found or list(folders())

    @cached_property
    def patterns(self) -> list[Pattern]:
        """Those of any engine and of these, each once: Ollama has llama.cpp's too."""
        own = [pattern for engine in self.engines if engine.log for pattern in engine.log.patterns]
        return list({pattern.rule.id: pattern for pattern in [*ANY_ENGINE, *own]}.values())

    @cached_property
    def starts(self) -> list[StartLog]:
        return [engine.log.start for engine in self.engines if engine.log]

    @cached_property
    def index(self) -> SignIndex:
        return SignIndex(self.log.text)

    @cached_property
    def run(self) -> LastRun:
        return last_run(self.log.text, self.starts)

    @property
    def _verbose(self) -> str:
        """A setting that makes the engine print more."""
        return next((start.verbose for start in self.starts if start.verbose), "") if self.is_certain else ""

    @cached_property
    def failures(self) -> list[Finding]:
        located = list(self._known_failures(self.run.worked))
        if not any(one.blocks for one in located):
            if speaks_of_earlier(self.log.text, self.run.worked):
                located = list(self._known_failures(max(self.run.begin, self.run.worked - _BEFORE_END)))
        elif all(one.finding.id in self._general for one in located if one.blocks):
            located = self._with_cause_before(located)
        overtaken = [one for one in located if one.blocks and self._is_overtaken(one)]
        located = [one for one in located if one not in overtaken]
        found = _best_explanations(self._told([*located, *self._figures()]), self.patterns)
        if not blocks(found):
            found += [*self._told(self._unexplained()), *self._context(overtaken)]
        return found

    def _context(self, overtaken: list[Located]) -> list[Finding]:
        """What precise rules know of lines before the end, as notes."""
        precise = self._told([one for one in overtaken if one.finding.id not in self._general])
        return [replace(one, severity="note", cause=f"{_BEFORE_THE_ERROR} {one.cause}") for one in precise]

    def findings(self) -> list[Finding]:
        """The failures, and what is to be said of a log that shows neither one nor the engine at work."""
        if any(finding.severity != "note" for finding in self.failures):
            return self.failures
        if refused := refused_requests(self.log.text, self.run.begin):
            return self.failures + self._told(refused)
        if self.run.ready is not None:
            return self.failures
        return self.failures + self._told(without_failure(self.log.text, self._verbose))

    @cached_property
    def _general(self) -> set[str]:
        """Rules that can do little more than repeat a message."""
        return {pattern.rule.id for pattern in self.patterns if pattern.general}

    def _with_cause_before(self, located: list[Located]) -> list[Located]:
        """With what a precise rule explains shortly before the last answer: one process answers while another ends."""
        before = list(self._known_failures(max(self.run.begin, self.run.worked - _SHORTLY)))
        return before if any(one.blocks and one.finding.id not in self._general for one in before) else located

    @cached_property
    def _errors(self) -> list[ErrorLine]:
        """Those of the last failure."""
        return last_errors(self.log.text, self.run.worked)

    def _is_overtaken(self, located: Located) -> bool:
        """Whether a blocking finding does not explain how the log ends.

        A line that is no error itself does not cause a later exception. A general rule does not explain the end if its
        line belongs to an earlier failure, or says less about the cause than another line of the last failure.
        """
        hit = located.hit
        if located.finding.id not in self._general:
            is_error = _is_code(self.log.text, hit) or kind_of(hit.line) is not None or is_exception(hit.line)
            return not is_error and any(error.is_exception and error.at > hit.at for error in self._errors)
        most = most_telling(self._errors)
        if most is None or most.kind < Kind.CAUSE:
            return False
        quoted = kind_of(_exception_of(self.log.text, hit).line) or Kind.CONSEQUENCE
        return quoted < Kind.CAUSE or hit.at < self._errors[0].at

    def _told(self, located: list[Located]) -> list[Finding]:
        """In the order of the log, with line numbers."""
        in_order = sorted(located, key=lambda one: one.hit.at)
        return [one.finding.with_evidence(self._quoted(_exception_of(self.log.text, one.hit))) for one in in_order]

    def _quoted(self, hit: Hit) -> str:
        return f"line {self.log.line_number(hit.at)}: {shorten(hit.line)}"

    def _known_failures(self, failed_after: int) -> Iterator[Located]:
        """What blocks is looked for from `failed_after` on, the rest in the whole run."""
        for pattern in self.patterns:
            start = failed_after if pattern.rule.severity == "blocks" else self._begin(pattern)
            hit = self._first(pattern, start)
            if hit and self._has_company(pattern) and not self._is_refuted(pattern, hit):
                yield Located(hit, self._explained(pattern, hit))
            elif pattern.if_survived:
                yield from self._survived(pattern, pattern.if_survived)

    def _is_refuted(self, pattern: Pattern, hit: Hit) -> bool:
        """Whether a line is about a draft whose tokens are accepted after it."""
        return pattern.if_survived is not None and accepts_drafts(self.log.text[hit.at :])

    def _begin(self, pattern: Pattern) -> int:
        """Where to look for what slows: in the run, and at the last such lines before it if they hold for the run."""
        begin = self.run.begin
        pieces = pattern.pieces if pattern.before_run else ()
        return min((at for piece in pieces if (at := self.log.text.rfind(piece, 0, begin)) >= 0), default=begin)

    def _survived(self, pattern: Pattern, severity: Severity) -> Iterator[Located]:
        """The failure of a draft without which the engine works."""
        hit = self._first(pattern, self.run.begin)
        if hit and self._has_company(pattern) and not self._is_refuted(pattern, hit):
            found = self._explained(pattern, hit)
            yield Located(hit, replace(found, severity=severity, cause=f"{_WITHOUT_DRAFT} {found.cause}"))

    def _has_company(self, pattern: Pattern) -> bool:
        """Whether the rest of the log allows the rule."""
        if pattern.only_with and not first_hit(self.log.text, pattern.only_with, None):
            return False
        if pattern.ended_by:
            last = max(self.log.text.rfind(piece) for piece in pattern.pieces)
            if first_hit(self.log.text, pattern.ended_by, None, start=last):
                return False
        return not (pattern.unless and first_hit(self.log.text, pattern.unless, None))

    def _first(self, pattern: Pattern, start: int) -> Hit | None:
        """The first fitting line of any piece."""
        found = (self._first_fitting(pattern, piece, start) for piece in pattern.pieces)
        return min((hit for hit in found if hit), key=lambda hit: hit.at, default=None)

    def _first_fitting(self, pattern: Pattern, piece: str, start: int) -> Hit | None:
        """A line of code that a traceback shows, or one that repeats an earlier error, is only taken where no better
        line follows.
        """
        fitting = (
            h
            for h in hits(self.log.text, piece, pattern.matches, start=start, index=self.index)
            if self._fits(pattern, h)
        )
        first = next(fitting, None)
        if first and _tells_little(first.line):
            return next((hit for hit in islice(fitting, _MAX_BETTER) if not _tells_little(hit.line)), first)
        return first

    def _fits(self, pattern: Pattern, hit: Hit) -> bool:
        if pattern.phase not in ("any", *self.run.phases(hit.at)):
            return False
        if pattern.rule.severity == "blocks" and (_is_no_failure(hit.line) or is_survived(self.log.text, hit.at)):
            return False
        if is_negated(self.log.text, hit.at):
            return False
        return self._has_frames(pattern, hit) or self._may_have_frames(pattern, hit)

    def _has_frames(self, pattern: Pattern, hit: Hit) -> bool:
        return not pattern.frames or any(frame in self._traceback(hit.at) for frame in pattern.frames)

    def _may_have_frames(self, pattern: Pattern, hit: Hit) -> bool:
        """Without a traceback above the line, a rule of an engine applies if the user or the text names that engine."""
        return self.is_certain and pattern not in ANY_ENGINE and 'File "' not in self._traceback(hit.at)

    def _traceback(self, at: int) -> str:
        """The lines of the traceback above a place."""
        before = self.log.text[max(self.run.begin, at - _TRACEBACK) : at]
        return before[max(before.rfind("Traceback (most recent call last)"), 0) :]

    def _explained(self, pattern: Pattern, hit: Hit) -> Finding:
        groups, doubt = _values(hit), self._doubt(pattern, hit)
        finding = pattern.rule.finding("", None, **groups)
        if fix := self._fix_here(pattern):
            finding = replace(finding, fix=fix.format(**groups))
        return replace(finding, cause=f"{doubt} If so: {finding.cause}") if doubt else finding

    def _fix_here(self, pattern: Pattern) -> str | None:
        """What to do on the platform or with the engine that the log shows, where that differs."""
        names = {one.name for one in self.engines} if self.is_certain else set[str]()
        return next((fix for where, fix in pattern.fix_on if where in names or where in self._platforms), None)

    @cached_property
    def _platforms(self) -> set[str]:
        return platforms_in(self.log.text)

    def _doubt(self, pattern: Pattern, hit: Hit) -> str:
        """A sentence with "may" where the log does not show that it is from the engine that the rule is about."""
        if not self._has_frames(pattern, hit):
            frames = " or ".join(pattern.frames)
            return f"The log has no traceback, so this may come from {frames} or from another program."
        if self.is_certain or pattern in ANY_ENGINE:
            return ""
        title = next(one.facts.title for one in self.engines if one.log and pattern in one.log.patterns)
        return f"The log does not name its engine; this may be {title}."

    def _figures(self) -> list[Located]:
        return [one for one in slow_runs(self.log.text) if one.hit.at >= self.run.begin]

    def _unexplained(self) -> list[Located]:
        errors = self._errors
        error = most_telling(self._not_about_known(errors))
        if error:
            name = " and ".join(one.facts.title for one in self.engines) if self.is_certain else "all engines"
            return [unknown(error, name, len(self.patterns), self._verbose)]
        return [] if errors else list(unfinished_start(self.log.text, self.run, self.engines))

    def _not_about_known(self, errors: list[ErrorLine]) -> list[ErrorLine]:
        """Errors that no rule explains. If a rule explains some of them, only those that end the program."""
        rest = [error for error in errors if not any(self._is_about(pattern, error) for pattern in self.patterns)]
        return rest if len(rest) == len(errors) else [error for error in rest if error.is_fatal]

    def _is_about(self, pattern: Pattern, error: ErrorLine) -> bool:
        matches = pattern.matches
        if not any(piece in error.line and (not matches or matches.search(error.line)) for piece in pattern.pieces):
            return False
        return self._fits(pattern, Hit(error.at, error.line, {})) and self._has_company(pattern)


def _engines_by_marks(text: str) -> list[EngineFolder]:
    """Those whose marks are in the log."""
    return [folder for folder in folders() if folder.log and any(mark in text for mark in folder.log.start.marks)]


def _tells_little(line: str) -> bool:
    return bool(_CODE.search(line)) or is_consequence(line) or "terminate called after throwing" in line


def _is_code(text: str, hit: Hit) -> bool:
    """Whether a hit is code that a traceback shows."""
    begin = max(text.rfind("\n", 0, hit.at), 0)
    return bool(_FRAME.search(text, max(0, text.rfind("\n", 0, begin)), begin))


def _exception_of(text: str, hit: Hit) -> Hit:
    """The exception at the end of the traceback whose code a hit is; else the hit."""
    if not _is_code(text, hit):
        return hit
    found = _RAISED.search(text, hit.at, hit.at + _TRACEBACK)
    return Hit(found.start(), line_at(text, found.start()), hit.groups) if found else hit


def _is_no_failure(line: str) -> bool:
    """Whether a line is no error: a note, a warning, or a row of a Markdown table that quotes none."""
    if _TABLE_ROW.match(line) and kind_of(line) is None:
        return True
    level = _LEVEL.search(line[:200])
    is_warning = level and (level[0] in _NO_FAILURE_LEVELS or level[0].endswith("Warning"))
    return bool(_NO_FAILURE.search(line) or is_warning or _GOES_ON.search(line))


def _values(hit: Hit) -> dict[str, str]:
    """What a rule's texts name. Groups NAME_2, NAME_3 … are the same value in other forms of the line."""
    found: dict[str, str] = {}
    for group, value in hit.groups.items():
        name = _FORM.sub("", group)
        found[name] = found.get(name) or _whole_words(value, hit.line)
    if size := found.get("amount"):
        found["amount"] = f" at an allocation of {size}"
    return {name: value or _UNSAID.get(name, "not named") for name, value in found.items()}


def _whole_words(value: str, line: str) -> str:
    """A value without the full stop at its end (the rule's text has one), and not cut in a word or in brackets."""
    value = " ".join(value.split())
    if not value:
        return ""
    after = " ".join(line.split()).partition(value)[2][:1]
    is_cut = value[-1:].isalnum() and (after.isalnum() or after == "_") and " " in value
    kept = value.rpartition(" ")[0] if is_cut else value
    opened = kept.rfind("(") if kept.count("(") > kept.count(")") else -1
    if is_cut and opened > 0:
        kept = kept[:opened]
    return f"{kept.rstrip(' .,;:')} …" if is_cut else kept.rstrip(" .,;:")


_UNSAID = {
    "amount": "",
    "capability": "below 8.0",
    "reason": "no reason given",
    "option": "an option",
    "package": "its package",
    "library": "that it needs",
    "method": "this quantisation",
    "rate": "under 10 %",
}


def _best_explanations(findings: list[Finding], patterns: list[Pattern]) -> list[Finding]:
    """Drops findings that a more precise one in the same log replaces. Of several general ones, the first stays: what
    follows from an error comes after it.
    """
    seen = {finding.id for finding in findings}
    replaced = {weaker for pattern in patterns if pattern.rule.id in seen for weaker in pattern.instead_of}
    findings = [finding for finding in findings if finding.id not in replaced]
    general = {pattern.rule.id for pattern in patterns if pattern.general}
    precise = [finding for finding in findings if finding.id not in general]
    if blocks(precise):
        return precise
    quoted = {finding.evidence for finding in precise}
    weak = [finding for finding in findings if finding.id in general and finding.evidence not in quoted]
    return [finding for finding in findings if finding in precise or finding in weak[:1]]
