"""bench: does speculation pay, on this machine, for this model and this kind of text?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from slipstream.backends import MachineOptions
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.diagnosis.alternatives import alternatives
from slipstream.engines import find_folder
from slipstream.errors import SlipstreamError
from slipstream.loading import drafter_for
from slipstream.measurement.engine_generator import EngineGenerator
from slipstream.measurement.measure import BenchDescription, measure
from slipstream.measurement.results import NOTHING_DRAFTED, PLAIN, BenchResult
from slipstream.measurement.runner import BenchSettings
from slipstream.measurement.synthetic import SyntheticSettings
from slipstream.measurement.workload import Prompt
from slipstream.model_files.model_facts import describe
from slipstream.predict.machine import inspect
from slipstream.predict.sizes import Sizes
from slipstream.tasks.bench_engine import bench_engine
from slipstream.tasks.engine_comparison import EngineComparison
from slipstream.tasks.models import Models, load_models, load_synthetic
from slipstream.tasks.options import (
    BENCH_WORKLOAD,
    ENGINE_CONTEXT,
    BenchOptions,
    ConcurrencyOptions,
    EngineChoice,
    EngineOptions,
    ModelOptions,
    RunningEngineOptions,
    WorkloadOptions,
    as_models,
    check_engine_options,
)
from slipstream.tasks.reporter import SILENT, Reporter

FREE_DRAFTERS = ("ngram", "suffix")


def bench(
    models: str | ModelOptions | None = None,
    workload: WorkloadOptions = BENCH_WORKLOAD,
    options: BenchOptions = BenchOptions(),
    *,
    machine: MachineOptions = MachineOptions(),
    engine: EngineOptions = EngineOptions(),
    running: RunningEngineOptions = RunningEngineOptions(),
    concurrency: ConcurrencyOptions = ConcurrencyOptions(),
    reporter: Reporter = SILENT,
) -> BenchResult:
    """Plain against speculative decoding: same loop, same timer, interleaved, text compared.

    `models.drafter` names the drafters to compare, separated by commas. Ctrl-C ends it early: the result says that it
    is partial. Raises UsageError, ModelError, and UnfinishedBenchError, which holds what was measured.
    """
    models = as_models(models)
    own_only = {name: getattr(options, name) for name in ("random_weights", "random_draft", "synthetic_acceptance")}
    check_engine_options(machine, engine, running, concurrency, **own_only)
    prompts = workload.read()
    settings = BenchSettings(
        sampling=Sampling(temperature=options.temperature, seed=options.seed),
        limits=Limits(workload.max_tokens, ignore_eos=options.random_weights is not None),
        passes=options.passes,
        seed=options.seed,
        warm_prompts=options.warm,
        keep_learned=options.repeat_prompts,
    )
    if engine.engine:
        streams = concurrency.stream_counts()
        choice = EngineChoice.measured(engine, machine.context_length or ENGINE_CONTEXT, max(streams))
        comparison = EngineComparison.of(choice, models, running, concurrency.one_at_a_time, options.warm)
        return bench_engine(comparison, prompts, settings, streams, options.command, reporter)
    synthetic = SyntheticSettings.checked(options.random_weights, options.random_draft, options.synthetic_acceptance)
    models = models.compared()
    drafters, chosen = models.drafters(), replace(models, drafter=None)
    loaded = (
        load_synthetic(chosen, synthetic, machine, reporter) if synthetic else load_models(chosen, machine, reporter)
    )
    result = bench_models(loaded, drafters or default_drafters(loaded), prompts, settings, options.command, reporter)
    if result.verdict.word in ("does not pay", "no difference", NOTHING_DRAFTED) and not synthetic:
        result = replace(result, notes=[*result.notes, *what_would_help(loaded.options.name, result.machine.device)])
    return result


def default_drafters(models: Models) -> list[str]:
    target, draft = models.pair.target, models.pair.draft
    if draft:
        return [*FREE_DRAFTERS, drafter_for(target, draft)]
    return [*FREE_DRAFTERS, *([target.own_drafter] if target.own_head else [])]


def bench_models(
    models: Models,
    drafters: Sequence[str],
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    command: str,
    reporter: Reporter = SILENT,
) -> BenchResult:
    """Plain decoding and the drafters on models that are loaded."""
    labels = [PLAIN, *(d for d in dict.fromkeys(drafters) if d != PLAIN)]
    generators = [EngineGenerator(label, partial(models.engine, label), models.verifier) for label in labels]
    described = {"model_spec": models.options.model, "draft": models.options.draft, "drafters": labels,
                 "policy": models.options.policy or "auto"}  # fmt: skip
    description = BenchDescription(described, command, models.synthetic, models.forces_acceptance)
    return measure(models.pair.target.model, generators, prompts, settings, description, reporter.progress)


def what_would_help(spec: str, device: str) -> list[str]:
    """In place of speculation, by this machine's figures: the most promising first. `device`: it ran on."""
    try:
        sizes = Sizes.of(describe(spec))
    except SlipstreamError:  # its files don't say enough
        return []
    found = alternatives(inspect(), sizes, find_folder("slipstream").facts, on_gpu=device != "cpu")
    return [f"what helps instead: {finding.cause} {finding.fix}" for finding in found[:3]]
