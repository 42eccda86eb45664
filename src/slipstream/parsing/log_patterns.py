"""Known lines of logs: failures, each with its rule, and the stages of an engine's start."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from slipstream.findings import Rule, Severity

Phase = Literal["start", "serving", "any"]


@dataclass(frozen=True, slots=True)
class Pattern:
    """`pieces`: exact texts, one of which is in the line. `matches`: a pattern for the line; its groups fill in the
    rule.

    `only_with`: texts elsewhere in the log, one of which is needed too; `unless`: those that show that the line is
    harmless; `ended_by`: those after the line that show that it is over. `instead_of`: less precise rules that this
    one replaces. `phase`: the line is printed before the engine is ready, after that, or either. `frames`: texts, one
    of which must be in the traceback above the line, for a message that other programs print too. `general`: the rule
    can do little more than repeat the message; any other explanation replaces it. `fix_on`: what to do instead where
    the log shows a platform or is from an engine; the first that fits counts. `if_survived`: the severity of a failure
    of the draft alone where the engine works after it; it is none where drafts are accepted later. `before_run`: a
    server prints the line once, and starts several runs after it.
    """

    rule: Rule
    pieces: tuple[str, ...]
    matches: re.Pattern[str] | None = None
    only_with: tuple[str, ...] = ()
    instead_of: tuple[str, ...] = ()
    phase: Phase = "any"
    frames: tuple[str, ...] = ()
    general: bool = False
    unless: tuple[str, ...] = ()
    ended_by: tuple[str, ...] = ()
    fix_on: tuple[tuple[str, str], ...] = ()
    if_survived: Severity | None = None
    before_run: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a start: the texts in the log that show it, what happens in it, and what to try if nothing follows."""

    name: str
    marks: tuple[str, ...]
    meaning: str = ""
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartLog:
    """How an engine starts and works, in its log and over HTTP. Stages are in the order of a start."""

    path: str = "/health"  # answers 200 when the engine is ready
    stages: tuple[Stage, ...] = ()
    marks: tuple[str, ...] = ()  # texts that show that a log is this engine's
    begins: tuple[str, ...] = ()  # texts that each start prints once, near its beginning
    library: tuple[str, ...] = ()  # the same, where a program uses the engine as a library
    library_ready: tuple[str, ...] = ()  # texts near the end of such a start: no line says that it is ready
    ready: tuple[str, ...] = ()  # texts that show that it was ready
    idle: tuple[str, ...] = ()  # texts that it prints after each request, failed ones too, and when it is ready first
    verbose: str = ""  # a setting that makes it print more
    works: tuple[tuple[str, ...], ...] = ()  # texts of one line that shows an answer, or the end of an offline run

    @property
    def first_marks(self) -> tuple[str, ...]:
        """Texts that show the beginning of a start: those of its first stage where none are named."""
        return (*self.library, *self.begins) if self.begins else self.stages[0].marks if self.stages else ()

    def stage_of(self, line: str) -> str | None:
        """The stage that a line of the log shows, or None."""
        return next((stage.name for stage in self.stages if any(mark in line for mark in stage.marks)), None)


@dataclass(frozen=True, slots=True)
class EngineLog:
    start: StartLog
    patterns: tuple[Pattern, ...] = ()
