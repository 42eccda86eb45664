"""tune of another engine: its own settings, searched by restarts within a time budget."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from slipstream.core.generator import Generator
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.driver import ExternalEngine, method_like
from slipstream.engines.engine_types import PLAIN, EngineSettings
from slipstream.errors import SlipstreamError, UsageError
from slipstream.measurement.tune import OFF, TuneCandidate, TuneResult
from slipstream.measurement.tune_restarts import RestartTuner
from slipstream.measurement.workload import Prompt
from slipstream.tasks.engine_comparison import started
from slipstream.tasks.engine_runs import on_free_port
from slipstream.tasks.engine_settings import as_given, engine_settings, with_method
from slipstream.tasks.options import EngineChoice, ModelOptions, TuneOptions
from slipstream.tasks.reporter import Reporter

_P_MINS = (None, 0.5)  # where the engine takes one


def tune_engine(
    choice: EngineChoice,
    model: str,
    options: TuneOptions,
    prompts: Sequence[Prompt],
    limits: Limits,
    reporter: Reporter,
) -> TuneResult:
    """Every method, length and p_min that the engine has for these models, plain decoding among them."""
    engine = choice.find()
    plain = engine_settings(choice, ModelOptions(model, drafter=PLAIN))

    def open_generator(candidate: TuneCandidate, limit_s: float) -> AbstractContextManager[Generator]:
        settings = settings_of(engine, plain, candidate)
        settings = replace(on_free_port(settings), start_limit_s=min(settings.start_limit_s, limit_s))
        # Speeds are taken after the first token, so the prompt may come from the cache: that saves time.
        return started(engine, settings, candidate.label, reporter, warm=True)

    drafters = options.drafter.split(",") if options.drafter else []
    candidates = candidates_of(engine, [as_given(choice.name, draft) for draft in options.drafts], drafters)
    sampling = Sampling(temperature=options.temperature, seed=options.seed)
    tuner = RestartTuner(open_generator, prompts, sampling, limits, options.seconds)
    result = tuner.run(candidates, options.progress(reporter))
    for label, why in tuner.failures.items():
        reporter.say(f"{label} is excluded: {why.splitlines()[0]}")
    if tuner.unmeasured:
        reporter.say(
            f"no time was left for {len(tuner.unmeasured)} candidates (more --seconds tries them): "
            f"{', '.join(tuner.unmeasured)}"
        )
    return result


def settings_of(engine: ExternalEngine, plain: EngineSettings, candidate: TuneCandidate) -> EngineSettings:
    if candidate == OFF:
        return plain
    return with_method(engine, plain, candidate.drafter, candidate.policy, candidate.draft)


def candidates_of(engine: ExternalEngine, drafts: Sequence[str], drafters: Sequence[str]) -> list[TuneCandidate]:
    """`drafters` narrows it down. Methods that want a special model (EAGLE, MTP …) are only tried by name."""
    wanted = [method_like(engine, name) for name in drafters] or [
        m for m in engine.methods if m.like or (m.draft == "unused" and not m.needs_arguments)
    ]
    found = []
    for method in wanted:
        if method.draft == "required" and not drafts:
            if drafters:
                raise UsageError(f"{method.name} needs a draft model: add --draft")
            continue
        p_mins = _P_MINS if method.takes_p_min else (None,)
        for draft in drafts if method.draft != "unused" and drafts else (None,):
            for p_min in p_mins:
                name = method.name if p_min is None else f"{method.name}(p_min={p_min})"
                lengths = [f"fixed({length})" for length in method.lengths]
                policies = ["auto", *lengths] if method.adapts or not lengths else lengths
                found += [TuneCandidate(name, policy, draft) for policy in policies]
    if not found:
        raise SlipstreamError(f"{engine.name} has nothing to tune without a draft model: add --draft")
    return found
