"""`slipstream audit --engine`: another engine's texts with and without speculation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from slipstream.cli.bench_engine import (
    Contest,
    attached,
    attached_urls,
    check_all,
    contestants,
    forces_acceptance,
    started,
)
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from slipstream.bench.engine_audit import EngineAudit, GapAt
    from slipstream.bench.runner import Progress
    from slipstream.bench.workload import Prompt
    from slipstream.core.generator import Generator
    from slipstream.core.sampling import Sampling
    from slipstream.core.stream import Limits
    from slipstream.engines.engine import ExternalEngine

_TOP = 5  # candidates that are asked for where texts differ


def audit_engine(
    contest: Contest,
    prompts: Sequence[Prompt],
    samplings: Sequence[Sampling],
    limits: Limits,
    progress: Progress,
) -> EngineAudit:
    """One start after the other. What ended an engine early is said on stderr."""
    from slipstream.bench.engine_audit import audit_engines
    from slipstream.cli.engine_runs import say

    if forces_acceptance(contest.choice):
        raise UsageError("--engine-args force the acceptance of drafts, so the text is not comparable: leave that out")
    samplings = comparable(contest.choice.find(), samplings)
    audit = audit_engines(_openers(contest), prompts, samplings, limits, partial(_gap_at, limits=limits), progress)
    for error in audit.errors:
        say(error)
    return audit


def comparable(engine: ExternalEngine, samplings: Sequence[Sampling]) -> list[Sampling]:
    """Those whose texts must be the same. Raises UsageError where there are none."""
    if engine.keeps_seeds:
        return list(samplings)
    greedy = [sampling for sampling in samplings if sampling.temperature == 0]
    why = f"{engine.name} keeps the distribution of sampled answers, not the text of a seed"
    if not greedy:
        raise UsageError(f"{why}: audit it with --temperatures 0")
    if len(greedy) < len(samplings):
        print(f"slipstream: {why}: only greedy answers are compared", file=sys.stderr)
    return greedy


def _openers(contest: Contest) -> dict[str, AbstractContextManager[Generator]]:
    from slipstream.cli.engine_runs import on_free_port

    if contest.url:
        if not contest.plain_url:
            raise UsageError("an audit compares two: give --plain-url of one without speculation too")
        return {label: attached(contest, label) for label in attached_urls(contest)}
    engine, chosen = contest.choice.find(), contestants(contest)
    check_all(engine, list(chosen.values()))
    return {label: started(engine, on_free_port(settings), label) for label, settings in chosen.items()}


def _gap_at(generator: Generator, limits: Limits) -> GapAt:
    from slipstream.bench.engine_audit import gap_of_candidates
    from slipstream.core.sampling import Sampling
    from slipstream.engines.http_generator import HttpGenerator

    def gap_at(prompt: Prompt, at: int, other: str) -> float | None:
        assert isinstance(generator, HttpGenerator)
        told = generator.candidates(prompt.request(), Sampling(), limits, _TOP)
        return gap_of_candidates(told, at, other)

    return gap_at
