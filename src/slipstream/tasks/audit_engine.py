"""audit of another engine: its texts with and without speculation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from slipstream.core.generator import Generator
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.driver import ExternalEngine
from slipstream.engines.http_generator import HttpGenerator
from slipstream.errors import UsageError
from slipstream.measurement.audit import AuditQuestions
from slipstream.measurement.engine_audit import EngineAudit, TextGap, audit_engines, gap_of_candidates
from slipstream.measurement.workload import Prompt
from slipstream.tasks.engine_comparison import EngineComparison, forces_acceptance, openers
from slipstream.tasks.reporter import Reporter

_TOP = 5  # candidates that are asked for where texts differ


def audit_engine(comparison: EngineComparison, questions: AuditQuestions, reporter: Reporter) -> EngineAudit:
    """One start after the other. What ended an engine early is reported."""
    if forces_acceptance(comparison.choice):
        raise UsageError(
            "--engine-args force the acceptance of drafts, so the text can't be compared: remove that argument"
        )
    samplings = comparable(comparison.choice.find(), questions.samplings, reporter)
    if comparison.running.url and not comparison.running.plain_url:
        raise UsageError("an audit compares two engines: add --plain-url with the URL of one without speculation")
    engines, limits = openers(comparison, reporter), questions.limits
    gap_at = partial(_gap_at, limits=limits)
    audit = audit_engines(engines, questions.prompts, samplings, limits, gap_at, reporter.progress)
    for error in audit.errors:
        reporter.say(error)
    return audit


def comparable(engine: ExternalEngine, samplings: Sequence[Sampling], reporter: Reporter) -> list[Sampling]:
    """Those whose texts must be the same. Raises UsageError where there are none."""
    if engine.keeps_seeds:
        return list(samplings)
    greedy = [sampling for sampling in samplings if sampling.temperature == 0]
    why = f"{engine.name} keeps the distribution of sampled answers, but not the text for a seed"
    if not greedy:
        raise UsageError(f"{why}: audit it with --temperatures 0")
    if len(greedy) < len(samplings):
        reporter.say(f"{why}: only greedy answers are compared")
    return greedy


def _gap_at(generator: Generator, limits: Limits) -> TextGap:
    def gap_at(prompt: Prompt, at: int, other: str) -> float | None:
        assert isinstance(generator, HttpGenerator)
        told = generator.candidates(prompt.request(), Sampling(), limits, _TOP)
        return gap_of_candidates(told, at, other)

    return gap_at
