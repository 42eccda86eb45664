"""Runs a whole benchmark: from generators to a BenchResult."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slipstream.core.protocols import Model
from slipstream.measurement.engine_generator import EngineGenerator
from slipstream.measurement.kept import written_first
from slipstream.measurement.machine import describe_machine
from slipstream.measurement.ratio import ratio
from slipstream.measurement.results import ALL_KINDS, PLAIN, BenchResult, DraftLengthPoint, RowCost, Run
from slipstream.measurement.row_cost import measure_row_cost
from slipstream.measurement.runner import BenchSettings, Progress, run_bench
from slipstream.measurement.summary import Yardstick, summarise
from slipstream.measurement.verdict import overall
from slipstream.measurement.workload import Prompt

_LENGTHS = (1, 2, 3, 4, 6, 8, 12)


@dataclass(frozen=True, slots=True)
class BenchDescription:
    """What the result says of itself: what the user chose, by which command, and whether it is synthetic."""

    chosen: dict[str, Any]
    command: str
    synthetic: bool = False
    forced_acceptance: bool = False


def measure(
    model: Model,
    generators: Sequence[EngineGenerator],
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    description: BenchDescription,
    progress: Progress,
) -> BenchResult:
    """Runs the benchmark. `generators[0]` is plain decoding.

    Raises UnfinishedBenchError with the samples so far if an answer or the summary fails.
    """
    costs = measure_row_cost(model)
    samples, complete = run_bench(generators, prompts, settings, progress)
    with written_first(samples):
        runs = summarise(samples, Yardstick(model.info.weight_bytes, costs, description.forced_acceptance))
        reasons = [f"{g.label}: {g.explain().reason}" for g in generators if g.label != PLAIN]
        return BenchResult(
            machine=describe_machine(model.info.device),
            settings={**description.chosen, **_facts(model, settings, prompts)},
            runs=runs,
            verdict=overall(runs),
            command=description.command,
            created=datetime.now().astimezone().isoformat(timespec="seconds"),
            cost_by_rows=costs,
            speedup_by_length=[point for run in runs for point in _by_length(run, costs)],
            notes=[f"policy, at the end of the run: {reason}" for reason in reasons],
            partial=not complete,
            synthetic=description.synthetic,
        )


def _facts(model: Model, settings: BenchSettings, prompts: Sequence[Prompt]) -> dict[str, Any]:
    return {
        "model": model.info.name,
        "backend": model.info.backend,
        "device": model.info.device,
        "dtype": model.info.dtype,
        "weight_bytes": model.info.weight_bytes,
        "batch_invariant": model.info.batch_invariant,
        "platform": platform.platform(),
        "num_prompts": len(prompts),
        "max_tokens": settings.limits.max_tokens,
        "temperature": settings.sampling.temperature,
        "seed": settings.sampling.seed,
        "passes": settings.passes,
        "prompt_cache": "warm" if settings.warm_prompts else "cold",
        "drafters_meet_prompts_again": settings.keep_learned,
    }


def _by_length(run: Run, costs: Sequence[RowCost]) -> list[DraftLengthPoint]:
    """The predicted speed-up of each draft length, from the measured row costs and the acceptance by position."""
    if run.drafter == PLAIN or run.kind != ALL_KINDS or not run.accepted_by_position:
        return []
    gains = {}
    for length in _LENGTHS[: len(run.accepted_by_position)]:
        cost = next((c.over_one for c in costs if c.rows >= length + 1), None)
        if cost is None or length > len(run.accepted_by_position):
            break
        gains[length] = ratio(1 + sum(run.accepted_by_position[:length]), cost)
    best = max(gains, key=lambda n: gains[n], default=0)
    return [DraftLengthPoint(run.drafter, n, gain, n == best) for n, gain in gains.items()]
