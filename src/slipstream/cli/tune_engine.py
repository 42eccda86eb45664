"""`slipstream tune --engine`: the engine's own settings, searched by restarts within a time budget."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from slipstream.cli import engine_options as eng
from slipstream.errors import SlipstreamError, UsageError

if TYPE_CHECKING:
    from slipstream.bench.tune import Candidate, Progress, TuneResult
    from slipstream.bench.workload import Prompt
    from slipstream.core.generator import Generator
    from slipstream.core.sampling import Sampling
    from slipstream.core.stream import Limits
    from slipstream.engines.engine import EngineSettings, ExternalEngine

_P_MINS = (None, 0.5)  # where the engine takes one


def tune_engine(
    choice: eng.EngineChoice,
    model: str,
    drafts: Sequence[str],
    drafters: Sequence[str],
    prompts: Sequence[Prompt],
    sampling: Sampling,
    limits: Limits,
    budget_s: float,
    progress: Progress,
) -> TuneResult:
    """Every method, length and p_min that the engine has for these models, plain decoding among them."""
    from slipstream.bench.tune_restarts import RestartTuner
    from slipstream.cli.bench_engine import started
    from slipstream.cli.engine_runs import on_free_port, say
    from slipstream.engines.engine import PLAIN

    engine = choice.find()
    plain = eng.engine_settings(choice, eng.Drafting(model, None, PLAIN, None))

    def open_generator(candidate: Candidate) -> AbstractContextManager[Generator]:
        return started(engine, on_free_port(settings_of(engine, plain, candidate)), candidate.label)

    candidates = candidates_of(engine, [eng.as_given(choice.name, draft) for draft in drafts], drafters)
    tuner = RestartTuner(open_generator, prompts, sampling, limits, budget_s)
    result = tuner.run(candidates, progress)
    for label, why in tuner.failures.items():
        say(f"{label} is out: {why.splitlines()[0]}")
    return result


def settings_of(engine: ExternalEngine, plain: EngineSettings, candidate: Candidate) -> EngineSettings:
    from slipstream.bench.tune import OFF

    if candidate == OFF:
        return plain
    return eng.with_method(engine, plain, candidate.drafter, candidate.policy, candidate.draft)


def candidates_of(engine: ExternalEngine, drafts: Sequence[str], drafters: Sequence[str]) -> list[Candidate]:
    """`drafters` narrows it down. Methods that want a special model (EAGLE, MTP …) are only tried by name."""
    from slipstream.bench.tune import Candidate
    from slipstream.engines.engine import method_like

    wanted = [method_like(engine, name) for name in drafters] or [
        m for m in engine.methods if m.like or m.draft == "unused"
    ]
    found = []
    for method in wanted:
        if method.draft == "required" and not drafts:
            if drafters:
                raise UsageError(f"{method.name} drafts with a model of its own: give one with --draft")
            continue
        p_mins = _P_MINS if method.takes_p_min else (None,)
        for draft in drafts if method.draft != "unused" and drafts else (None,):
            for p_min in p_mins:
                name = method.name if p_min is None else f"{method.name}(p_min={p_min})"
                policies = [f"fixed({length})" for length in method.lengths] or ["auto"]
                found += [Candidate(name, policy, draft) for policy in policies]
    if not found:
        raise SlipstreamError(f"{engine.name} has nothing to tune without a draft model: give one with --draft")
    return found
