"""`slipstream tune`: finds the fastest settings on this machine and writes them to slipstream.yaml."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.backends import MachineOptions
from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter, result_console, text_table
from slipstream.errors import SlipstreamError
from slipstream.tasks.options import TUNE_WORKLOAD, EngineOptions, ModelOptions, TuneOptions, WorkloadOptions
from slipstream.tasks.settings_file import FILE_NAME, FileSettings, write_settings
from slipstream.writing import refuse_unwritable

if TYPE_CHECKING:
    from rich.table import Table

    from slipstream.measurement.tune import Score, TuneResult

_INTERVAL = "95 % interval"
_COLUMNS = ("drafter and length", "speed-up", _INTERVAL, "accepted", "prompts", "")

DRAFTERS = opt.OptionSpec(
    "--drafter",
    "Drafters to try, separated by commas. Default: ngram,suffix,suffix(width=3), with a draft model also "
    "model, model(p_min=0.4) and model(n_parallel=3), with a head also head and chained:suffix+head.",
    "Speculation",
)


@grouped(drafter=DRAFTERS)
def tune(
    options: TuneOptions = TuneOptions(),
    workload: WorkloadOptions = TUNE_WORKLOAD,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write the settings to.")] = Path(
        FILE_NAME
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the choice without writing it.")] = False,
    engine: EngineOptions = EngineOptions(),
    machine: MachineOptions = MachineOptions(),
    as_json: opt.Json = False,
) -> None:
    """Find the fastest drafter, draft length, p_min, tree width and draft model within a time budget.

    Plain decoding is a candidate too: settings that draft nothing, or are not faster beyond noise, are not chosen over
    it. Ctrl-C ends the search and keeps the best settings so far.

    [bold]Examples[/bold]

      slipstream tune

      slipstream tune --model big.gguf --draft small.gguf --draft smaller.gguf --seconds 600

      slipstream tune --engine llama-server --model big.gguf --draft small.gguf

      slipstream tune --prompts my-prompts.jsonl --dry-run
    """
    from slipstream.tasks.tune import tune as run_tune

    if not dry_run:
        refuse_unwritable(output)
    with TerminalReporter("tuning") as reporter:
        result = run_tune(options, workload, machine=machine, engine=engine, reporter=reporter)
    model = ModelOptions(options.model).resolved(engine.engine).name
    where = FileSettings(model, backend=options.backend, engine=engine.engine)
    _finish(result, where, None if dry_run else output, as_json)


def _finish(result: TuneResult, where: FileSettings, output: Path | None, as_json: bool) -> None:
    """Shows the choice, then writes it to `output` if given, also if showing fails.

    `where`: the model and the engine. A failed search is shown but not written; raises SlipstreamError.
    """
    model = where.model or ""
    try:
        if as_json:
            print(json.dumps(result.to_dict() | {"model": model, "explanation": explanation(result)}))
        else:
            _print(result, model)
        sys.stdout.flush()
    finally:
        if output and not result.error:
            best = result.best.candidate
            chosen = replace(where, draft=best.draft, drafter=best.drafter, policy=best.policy)
            write_settings(chosen, output, _comments(result, model))
    if result.error:
        raise SlipstreamError(
            f"the search failed; the scores shown were measured before: {type(result.error).__name__}: "
            f"{result.error}. Nothing was written"
        ) from result.error
    if output and not as_json:
        print(f"written to {output}; every slipstream command in this folder reads it")


def _comments(result: TuneResult, model: str) -> list[str]:
    best = result.best
    return [
        f"Written by slipstream tune on {date.today().isoformat()}{'' if result.complete else ' (interrupted)'}.",
        f"{best.candidate.label}: {best.speedup:.2f}x the speed of plain decoding of {model} here "
        f"({len(best.replayed)} prompts replayed, {len(best.ratios)} run).",
    ]


def _print(result: TuneResult, model: str) -> None:
    from slipstream.measurement.table import print_fitted

    console = result_console()
    print_fitted(
        console, _table(result, model, _COLUMNS), _table(result, model, [c for c in _COLUMNS if c != _INTERVAL])
    )
    console.print(explanation(result))


def _table(result: TuneResult, model: str, columns: Sequence[str]) -> Table:
    rows = [dict(zip(_COLUMNS, _cells(score, result), strict=True)) for score in result.scores[:10]]
    table = text_table(columns, ([row[column] for column in columns] for row in rows), right=_COLUMNS[1:-1])
    table.title = f"{'' if result.complete else 'PARTIAL '}tuning {model}: {result.elapsed_s:.0f} s"
    return table


def _cells(score: Score, result: TuneResult) -> list[str]:
    from slipstream.measurement.tune import OFF

    note = "chosen" if score is result.best else ""
    if score is result.rule_of_thumb():
        note = f"{note} rule of thumb".strip()
    if score.drafted_nothing:
        note = f"drafted nothing {note}".strip()
    interval = score.interval
    speed = (
        ["–", "–"] if score.drafted_nothing else [f"{score.speedup:.2f}x", f"{interval.low:.2f}–{interval.high:.2f}"]
    )
    if score.candidate == OFF:
        speed = ["1.00x", ""]
    return [
        score.candidate.label, *speed, f"{score.acceptance_rate:.0%}" if score.num_drafted else "–",
        _prompts(score), note,
    ]  # fmt: skip


def _prompts(score: Score) -> str:
    """How many were run, and replayed where that is possible."""
    return f"{len(score.ratios)} + {len(score.replayed)} replayed" if score.replayed else str(len(score.ratios))


def explanation(result: TuneResult) -> str:
    """The choice, the runner-up, and what the rule of thumb would have chosen."""
    from slipstream.measurement.tune import OFF

    best, rule = result.best, result.rule_of_thumb()
    others = [s for s in result.scores[1:] if s.speedup and not s.drafted_nothing]
    lines = [f"chosen: {best.candidate.label}, {best.speedup:.2f}x the speed of plain decoding"]
    if best.candidate == OFF:
        lines = ["chosen: plain decoding, because nothing was faster beyond noise"]
    idle = [s.candidate.label for s in result.scores if s.drafted_nothing]
    if idle:
        lines.append(f"drafted nothing: {', '.join(idle)}")
    if others:
        lines.append(f"runner-up: {others[0].candidate.label}, {others[0].speedup:.2f}x")
    four = next((c for c in result.cost_by_rows if c.rows == 4), None)
    if four:
        lines.append(f"verifying 4 tokens takes {four.over_one:.2f}x as long as one here")
    if rule:
        lines.append(
            "the rule of thumb (above 70 % accepted: longer, below 50 %: shorter) would choose "
            f"{rule.candidate.label}, {rule.speedup:.2f}x"
        )
    return "; ".join(lines)
