"""`slipstream demo`: the same prompts with and without speculation, side by side."""

from __future__ import annotations

from slipstream.cli import options as opt
from slipstream.cli.bench import finish
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter
from slipstream.tasks.options import BENCH_WORKLOAD, BenchOptions, ModelOptions, WorkloadOptions


@grouped(drafter=opt.DRAFTERS, draft=None, policy=None, prompts=None, limit=None)
def demo(
    models: ModelOptions = ModelOptions(), workload: WorkloadOptions = BENCH_WORKLOAD, as_json: opt.Json = False
) -> None:
    """Decode prompts of eight kinds with and without speculation, and compare speed and text.

    [bold]Examples[/bold]

      slipstream demo

      slipstream demo --drafter ngram --max-tokens 200
    """
    from dataclasses import replace

    from slipstream.tasks.bench import bench

    workload = replace(workload, limit=BENCH_WORKLOAD.limit)
    with TerminalReporter("measuring") as reporter:
        result = bench(models, workload, BenchOptions(passes=1, command="slipstream demo"), reporter=reporter)
    finish(result, None, as_json)
