"""`slipstream tune`: find the fastest settings here, and keep them in slipstream.yaml."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import engine_options as eng
from slipstream.cli import options as opt
from slipstream.cli.settings_file import FILE_NAME, FileSettings, read_settings, write_settings
from slipstream.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream.bench.tune import Candidate, Progress, Score, TuneResult
    from slipstream.cli.loading import Models
    from slipstream.core.engine import Engine

FREE_DRAFTERS = "ngram,suffix,suffix(width=3)"
DRAFT_DRAFTERS = "model,model(p_min=0.4),model(n_parallel=3)"


def tune(
    model: opt.Model = None,
    draft: Annotated[
        list[str] | None,
        typer.Option("--draft", "-d", help="A draft model to try; may be repeated.", rich_help_panel="Models"),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            help=f"Drafters to try. Default: {FREE_DRAFTERS}, and with --draft also {DRAFT_DRAFTERS}.",
            rich_help_panel="Speculation",
        ),
    ] = None,
    prompts: opt.Prompts = None,
    limit: opt.Limit = 24,
    max_tokens: opt.MaxTokens = 48,
    seconds: Annotated[float, typer.Option("--seconds", help="The time budget.", min=5)] = 180.0,
    temperature: opt.Temperature = 0.0,
    seed: opt.Seed = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the settings go.")] = Path(FILE_NAME),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the choice, write nothing.")] = False,
    engine: eng.Engine = None,
    program: eng.Program = None,
    engine_args: eng.EngineArgs = "",
    start_limit: eng.StartLimit = 600.0,
    device: opt.Device = "auto",
    dtype: opt.DType = "auto",
    context: opt.Context = None,
    threads: opt.Threads = None,
    backend: opt.BackendOption = None,
    gpu_layers: opt.GpuLayers = None,
    kv_type: opt.KvType = "auto",
    as_json: opt.Json = False,
) -> None:
    """Search drafter, draft length, p_min, tree width and draft model, "off" included, within a time budget.

    Ctrl-C ends the search; the best so far is kept.

    [bold]Examples[/bold]

      slipstream tune

      slipstream tune --model big.gguf --draft small.gguf --draft smaller.gguf --seconds 600

      slipstream tune --engine llama-server --model big.gguf --draft small.gguf

      slipstream tune --prompts my-prompts.jsonl --dry-run
    """
    from slipstream.bench.engine_generator import EngineGenerator
    from slipstream.bench.replay import replayer
    from slipstream.bench.row_cost import measure_row_cost
    from slipstream.bench.tune import Tuner, grid
    from slipstream.core.sampling import Sampling
    from slipstream.core.stream import Limits

    workload = opt.read_workload(prompts, limit)
    if engine:
        from slipstream.cli.tune_engine import tune_engine

        eng.refuse_with_engine(device=device, dtype=dtype, threads=threads, backend=backend, gpu_layers=gpu_layers,
                               kv_type=kv_type)  # fmt: skip
        choice = eng.EngineChoice(engine, program, engine_args, start_limit, context or eng.BENCH_CONTEXT)
        target = model or read_settings().model or opt.DEFAULT_MODEL
        sampling, limits = Sampling(temperature=temperature, seed=seed), Limits(max_tokens)
        with _progress(seconds) as progress:
            result = tune_engine(
                choice, target, draft or [], drafter.split(",") if drafter else [], workload, sampling, limits, seconds,
                progress,
            )  # fmt: skip
        _finish(result, FileSettings(target, engine=engine), None if dry_run else output, as_json)
        return
    eng.refuse_without_engine(program=program, engine_args=engine_args)
    drafters = opt.split_drafters(drafter or FREE_DRAFTERS) + (
        opt.split_drafters(DRAFT_DRAFTERS) if draft and not drafter else []
    )
    settings = opt.LoadSettings.resolve(
        model, None, None, None, device, dtype, context, threads, False,
        backend, gpu_layers, kv_type,
    )  # fmt: skip
    models = _load_all(settings, draft or [])
    with _progress(seconds) as progress:
        costs = measure_row_cost(next(iter(models.values())).target.model)
        sampling = Sampling(temperature=temperature, seed=seed)
        tuner = Tuner(
            lambda candidate: EngineGenerator(candidate.label, partial(_engine, models, candidate)),
            workload, sampling, Limits(max_tokens), seconds, seed,
            replay=replayer(partial(_engine, models), sampling, costs),
        )  # fmt: skip
        result = tuner.run(grid(drafters, draft or []), costs, progress)
    _finish(result, FileSettings(settings.model, backend=backend), None if dry_run else output, as_json)


def _finish(result: TuneResult, where: FileSettings, output: Path | None, as_json: bool) -> None:
    """Shows the choice, then writes it to `output`, where there is one: also where showing fails.

    `where`: the model, and what runs it. A search that failed is shown and not written; raises SlipstreamError.
    """
    model = where.model or ""
    try:
        if as_json:
            print(json.dumps(_as_dict(result, model)))
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
            f"the search failed, and the scores shown are what it had measured: {type(result.error).__name__}: "
            f"{result.error}. Nothing was written"
        ) from result.error
    if output and not as_json:
        print(f"written to {output}; every command run in this folder reads it")


def _load_all(settings: opt.LoadSettings, drafts: Sequence[str]) -> dict[str | None, Models]:
    """The target once, with each draft; under None with no draft."""
    from dataclasses import replace

    from slipstream.cli.loading import Models, load_models

    alone = load_models(settings)
    loaded: dict[str | None, Models] = {None: alone}
    for spec in drafts:
        other = load_models(replace(settings, model=spec))
        loaded[spec] = Models(alone.target, other.target, settings)
    return loaded


def _engine(models: dict[str | None, Models], candidate: Candidate) -> Engine:
    return models[candidate.draft].engine(candidate.drafter, candidate.policy)


@contextmanager
def _progress(seconds: float) -> Iterator[Progress]:
    from slipstream.cli.bench import progress_bar

    with progress_bar("tuning") as bar:
        yield lambda share, what: bar(int(share * seconds), int(seconds), what)


def _comments(result: TuneResult, model: str) -> list[str]:
    best = result.best
    return [
        f"Written by slipstream tune on {date.today().isoformat()}{'' if result.complete else ' (interrupted)'}.",
        f"{best.candidate.label}: {best.speedup:.2f}x plain decoding of {model} here "
        f"({len(best.replayed)} prompts replayed, {len(best.ratios)} run).",
    ]


def _print(result: TuneResult, model: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{'' if result.complete else 'PARTIAL '}tuning {model}: {result.elapsed_s:.0f} s")
    for column in ("drafter and length", "speed-up", "accepted", "replayed", "run", ""):
        table.add_column(column, justify="left" if column == "drafter and length" else "right")
    for score in result.scores[:10]:
        table.add_row(*_cells(score, result))
    console.print(table)
    console.print(explanation(result), highlight=False)


def _cells(score: Score, result: TuneResult) -> list[str]:
    note = "chosen" if score is result.best else ""
    if score is result.rule_of_thumb():
        note = f"{note} rule of thumb".strip()
    return [
        score.candidate.label, f"{score.speedup:.2f}x", f"{score.acceptance_rate:.0%}" if score.num_drafted else "–",
        str(len(score.replayed)), str(len(score.ratios)), note,
    ]  # fmt: skip


def explanation(result: TuneResult) -> str:
    """The choice and the runner-up in words, and what the rule of thumb would have chosen."""
    best, rule = result.best, result.rule_of_thumb()
    others = [s for s in result.scores[1:] if s.speedup]
    lines = [f"chosen: {best.candidate.label}, {best.speedup:.2f}x plain decoding"]
    if others:
        lines.append(f"runner-up: {others[0].candidate.label}, {others[0].speedup:.2f}x")
    four = next((c for c in result.cost_by_rows if c.rows == 4), None)
    if four:
        lines.append(f"4 rows cost {four.over_one:.2f}x one row here")
    if rule:
        lines.append(
            f"the rule of thumb (above 70 % accepted: longer, below 50 %: shorter) ends at {rule.candidate.label}, "
            f"{rule.speedup:.2f}x"
        )
    return "; ".join(lines)


def _as_dict(result: TuneResult, model: str) -> dict[str, Any]:
    rule = result.rule_of_thumb()
    return {
        "schema": "slipstream.tune/1",
        "model": model,
        "partial": not result.complete,
        "elapsed_s": result.elapsed_s,
        "best": asdict(result.best.candidate) | {"speedup": result.best.speedup},
        "rule_of_thumb": rule and asdict(rule.candidate) | {"speedup": rule.speedup},
        "cost_by_rows": [asdict(c) for c in result.cost_by_rows],
        "scores": [
            asdict(s.candidate)
            | {
                "speedup": s.speedup,
                "acceptance_rate": s.acceptance_rate,
                "runs": len(s.ratios),
                "replays": len(s.replayed),
            }
            for s in result.scores
        ],
        "explanation": explanation(result),
    }
