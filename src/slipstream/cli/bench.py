"""`slipstream bench`: measures whether speculation pays off on this machine, for this model and this kind of text."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.backends import MachineOptions
from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter
from slipstream.tasks.options import (
    BENCH_WORKLOAD,
    BenchOptions,
    ConcurrencyOptions,
    EngineOptions,
    ModelOptions,
    RunningEngineOptions,
    WorkloadOptions,
)
from slipstream.writing import refuse_unwritable

if TYPE_CHECKING:
    from slipstream.measurement.results import BenchResult

STREAMS = opt.OptionSpec("--streams", "With --engine: requests at the same time.", "Engine")


@grouped(drafter=opt.DRAFTERS, streams=STREAMS)
def bench(
    models: ModelOptions = ModelOptions(),
    workload: WorkloadOptions = BENCH_WORKLOAD,
    options: BenchOptions = BenchOptions(),
    engine: EngineOptions = EngineOptions(),
    running: RunningEngineOptions = RunningEngineOptions(),
    concurrency: ConcurrencyOptions = ConcurrencyOptions(),
    machine: MachineOptions = MachineOptions(),
    report: Annotated[Path | None, typer.Option("--report", help="Also write a self-contained HTML report.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Compare the speed and text of plain and speculative decoding: same loop, same timer, interleaved.

    Ctrl-C stops early and shows the results so far, labelled as partial. A drafter that drafted nothing gets no
    speed-up: the verdict is "nothing drafted". The exit code is 1 if a text differs, or if drafts are verified one
    token at a time.

    [bold]Examples[/bold]

      slipstream bench

      slipstream bench --model big.gguf --draft small.gguf --prompts question.jsonl --limit 40 --report out.html

      slipstream bench --engine llama-server --model big.gguf --draft small.gguf --streams 1,4,16

      slipstream bench --random-weights llama-8b --random-draft llama-1b --synthetic-acceptance 0.8
    """
    from slipstream.tasks.bench import bench as run_bench

    if report:
        refuse_unwritable(report)
    with TerminalReporter("measuring") as reporter:
        result = run_bench(
            models,
            workload,
            replace(options, command=opt.command_line()),
            machine=machine,
            engine=engine,
            running=running,
            concurrency=concurrency,
            reporter=reporter,
        )
    finish(result, report, as_json)


def finish(result: BenchResult, report: Path | None, as_json: bool) -> None:
    """Prints the result, then writes the report, each even if the other fails. Exit code 1 if texts differ."""
    try:
        print_result(result, as_json)
        sys.stdout.flush()
    finally:
        if report:
            from slipstream.measurement.report import write_report

            write_report(result.to_dict(), report)
    if result.verdict.word == "broken":
        raise typer.Exit(1)


def print_result(result: BenchResult, as_json: bool) -> None:
    """As JSON or as a table. A table that fails still leaves the JSON, and raises its error."""
    data = json.dumps(result.to_dict(), ensure_ascii=False)
    if as_json:
        print(data)
        return
    from slipstream.measurement.table import print_table

    try:
        print_table(result)
    except OSError:  # of the output itself
        raise
    except Exception:
        print(data)
        raise
