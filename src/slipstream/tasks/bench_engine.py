"""bench of another engine: plain against speculative decoding under the same load."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from slipstream.engines.secrets import redacted_text
from slipstream.errors import EngineError
from slipstream.measurement.kept import written_first
from slipstream.measurement.load_test import run_load
from slipstream.measurement.load_test_result import load_result
from slipstream.measurement.results import BenchResult
from slipstream.measurement.runner import BenchSettings, Opener
from slipstream.measurement.workload import Prompt
from slipstream.tasks.engine_comparison import EngineComparison, asked, checked_settings, forces_acceptance, openers
from slipstream.tasks.engine_runs import engine_running
from slipstream.tasks.reporter import Reporter


def bench_engine(
    comparison: EngineComparison,
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    stream_counts: Sequence[int],
    command: str,
    reporter: Reporter,
) -> BenchResult:
    """Two instances side by side, or two starts, one engine under load at a time. Partial where an engine died."""
    with ExitStack() as stack:
        run = run_load(_openers(comparison, stack, reporter), prompts, settings, stream_counts, reporter.progress)
        if not run.samples:
            raise EngineError(run.error or "stopped before anything was measured")
    with written_first(run.samples):
        forced = forces_acceptance(comparison.choice)
        return load_result(run, settings, _described(comparison, len(prompts)), command, forced)


def _openers(comparison: EngineComparison, stack: ExitStack, reporter: Reporter) -> dict[str, Opener]:
    """Engines that are started here run side by side, as long as the stack lasts, unless they take turns."""
    if comparison.running.url or comparison.one_at_a_time:
        return openers(comparison, reporter)
    engine, chosen = comparison.choice.find(), checked_settings(comparison)
    instances = {label: stack.enter_context(engine_running(engine, one, reporter)) for label, one in chosen.items()}
    return {label: partial(asked, running, label, comparison.warm) for label, running in instances.items()}


def _described(comparison: EngineComparison, num_prompts: int) -> dict[str, Any]:
    engine, models, url = comparison.choice.find(), comparison.models, comparison.running.url
    return {
        "model": redacted_text(url) if url else models.model,
        "model_spec": models.model,
        "draft": models.draft,
        "engine": engine.name,
        "engine_checked_against": engine.version,
        "dtype": engine.name,
        "device": redacted_text(comparison.choice.engine_args) or "its own settings",
        "num_prompts": num_prompts,
    }
