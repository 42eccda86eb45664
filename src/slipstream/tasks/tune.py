"""tune: find the fastest settings here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from slipstream.backends import MachineOptions
from slipstream.core.engine import Engine
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.measurement.engine_generator import EngineGenerator
from slipstream.measurement.replay import replayer
from slipstream.measurement.row_cost import measure_row_cost
from slipstream.measurement.tune import TuneCandidate, Tuner, TuneResult, grid
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
)
from slipstream.tasks.reporter import SILENT, Reporter
from slipstream.tasks.tune_engine import tune_engine

FREE_DRAFTERS = "ngram,suffix,suffix(width=3)"
DRAFT_DRAFTERS = "model,model(p_min=0.4),model(n_parallel=3)"


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
        choice = EngineChoice.measured(engine, machine.context_length or ENGINE_CONTEXT)
        return tune_engine(choice, chosen.name, options, prompts, limits, reporter)
    models = _load_all(chosen, options.drafts, machine, reporter)
    costs = measure_row_cost(models[None].target.model)
    sampling = Sampling(temperature=options.temperature, seed=options.seed)
    tuner = Tuner(
        lambda candidate: EngineGenerator(candidate.label, partial(_engine, models, candidate)),
        prompts, sampling, limits, options.seconds, options.seed,
        replay=replayer(partial(_engine, models), sampling, costs),
    )  # fmt: skip
    return tuner.run(grid(_drafters(options), list(options.drafts)), costs, options.progress(reporter))


def _drafters(options: TuneOptions) -> list[str]:
    usual = f"{FREE_DRAFTERS},{DRAFT_DRAFTERS}" if options.drafts else FREE_DRAFTERS
    return ModelOptions(drafter=options.drafter or usual).drafters()


def _load_all(
    options: ModelOptions, drafts: Sequence[str], machine: MachineOptions, reporter: Reporter
) -> dict[str | None, Models]:
    """The target once, with each draft; under None with no draft."""
    alone = load_models(options, machine, reporter)
    loaded: dict[str | None, Models] = {None: alone}
    for spec in drafts:
        other = load_models(replace(options, model=spec), machine, reporter)
        loaded[spec] = Models(alone.target, other.target, options)
    return loaded


def _engine(models: dict[str | None, Models], candidate: TuneCandidate) -> Engine:
    return models[candidate.draft].engine(candidate.drafter, candidate.policy)
