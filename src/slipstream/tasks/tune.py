"""tune: find the fastest settings here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from slipstream.backends import MachineOptions
from slipstream.core.engine import Engine
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.diagnosis.preflight import refuse_other_target
from slipstream.drafters import OWN, names
from slipstream.errors import UsageError
from slipstream.loading import LoadedPair, drafter_for
from slipstream.measurement.engine_generator import EngineGenerator
from slipstream.measurement.replay import replayer
from slipstream.measurement.row_cost import measure_row_cost
from slipstream.measurement.tune import OFF, TuneCandidate, Tuner, TuneResult, grid
from slipstream.model_files.head_checks import is_head
from slipstream.models import pull
from slipstream.tasks.models import Models, load_models
from slipstream.tasks.options import (
    ENGINE_CONTEXT,
    TUNE_WORKLOAD,
    EngineChoice,
    EngineOptions,
    ModelOptions,
    RunningEngineOptions,
    TuneOptions,
    WorkloadOptions,
    check_engine_options,
    startable,
)
from slipstream.tasks.reporter import SILENT, Reporter
from slipstream.tasks.tune_engine import tune_engine

FREE = ("ngram", "suffix", "suffix(width=3)")
WITH_DRAFT = ("model", "model(p_min=0.4)", "model(n_parallel=3)")
WITH_HEAD = ("head", "chained:suffix,head")
_HEAD_LENGTHS = (2, 4)  # the fastest on a CPU and on a GPU (benchmarks/results); each takes real answers, so no others


def tune(
    options: TuneOptions = TuneOptions(),
    workload: WorkloadOptions = TUNE_WORKLOAD,
    *,
    machine: MachineOptions = MachineOptions(),
    engine: EngineOptions = EngineOptions(),
    reporter: Reporter = SILENT,
) -> TuneResult:
    """Searches drafter, draft length, p_min, tree width and draft model, "off" included, within a time budget.

    Ctrl-C ends the search, and the result says that it is partial. An error in the search is in the result, with the
    scores that it had measured. Raises UsageError, ModelError.
    """
    check_engine_options(machine, engine, RunningEngineOptions())
    prompts, limits = workload.read(), Limits(workload.max_tokens)
    chosen = ModelOptions(options.model, drafter="none", backend=options.backend).resolved(engine.engine)
    if engine.engine:
        startable(engine.engine)
        choice = EngineChoice.measured(engine, machine.context_length or ENGINE_CONTEXT)
        return tune_engine(choice, chosen.name, options, prompts, limits, reporter)
    drafters = ModelOptions(drafter=options.drafter).drafters()
    models = _load_all(chosen, options.drafts, machine, reporter)
    costs = measure_row_cost(models[None].pair.target.model)
    sampling = Sampling(temperature=options.temperature, seed=options.seed)
    tuner = Tuner(
        lambda candidate: EngineGenerator(candidate.label, partial(_engine, models, candidate)),
        prompts, sampling, limits, options.seconds, options.seed,
        replay=replayer(partial(_engine, models), sampling, costs, lambda one: not names(one.drafter, "head", OWN)),
    )  # fmt: skip
    return tuner.run(_candidates(drafters, models), costs, options.progress(reporter))


def _candidates(drafters: Sequence[str], models: dict[str | None, Models]) -> list[TuneCandidate]:
    """Plain decoding, and the drafters that were asked for, or all that suit what is here. Each with every draft that
    it can use.
    """
    found = [OFF]
    for spec, loaded in models.items():
        for drafter in drafters or _usual(spec, loaded):
            if _suits(drafter, spec, loaded):
                found += grid(drafter, spec, _HEAD_LENGTHS) if names(drafter, "head") else grid(drafter, spec)
    lacking = [drafter for drafter in drafters if all(drafter != one.drafter for one in found)]
    if lacking:
        kind = "head" if names(lacking[0], "head") else "model"
        raise UsageError(f"the drafter {lacking[0]} needs a draft {kind}: name one with --draft")
    return found


def _usual(spec: str | None, loaded: Models) -> Sequence[str]:
    if loaded.pair.draft:
        return WITH_DRAFT if drafter_for(loaded.pair.target, loaded.pair.draft) == "model" else ("translate",)
    return (*(FREE if spec is None else ()), *WITH_HEAD)


def _suits(drafter: str, spec: str | None, loaded: Models) -> bool:
    if names(drafter, "head"):
        return bool(loaded.pair.head or (spec is None and loaded.pair.target.own_head))
    if names(drafter, "model", "translate"):
        return loaded.pair.draft is not None
    return spec is None


def _load_all(
    options: ModelOptions, drafts: Sequence[str], machine: MachineOptions, reporter: Reporter
) -> dict[str | None, Models]:
    """The target once, with each draft; under None with no draft. Raises what is wrong with one before it is read."""
    for spec in drafts:
        pull(spec, reporter.say)
        if is_head(spec):
            refuse_other_target(options.name, spec)
    alone = load_models(options, machine, reporter)
    loaded: dict[str | None, Models] = {None: alone}
    for spec in drafts:
        if is_head(spec):
            loaded[spec] = Models(LoadedPair(alone.pair.target, head=spec), options)
        else:
            other = load_models(replace(options, model=spec), machine, reporter)
            loaded[spec] = Models(LoadedPair(alone.pair.target, other.pair.target), options)
    return loaded


def _engine(models: dict[str | None, Models], candidate: TuneCandidate) -> Engine:
    return models[candidate.draft].engine(candidate.drafter, candidate.policy)
