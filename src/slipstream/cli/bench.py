"""`slipstream bench`: does speculation pay, on this machine, for this model and this kind of text?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import engine_options as eng
from slipstream.cli import options as opt
from slipstream.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream.bench.results import BenchResult
    from slipstream.bench.runner import BenchSettings, Progress
    from slipstream.bench.workload import Prompt
    from slipstream.cli.loading import Models

DEFAULT_DRAFTERS = "ngram,suffix"
DEFAULT_LIMIT = 8  # a prompt of each kind: under three minutes with the built-in model on two cores


def bench(
    model: opt.Model = None,
    draft: opt.Draft = None,
    drafter: opt.Drafters = None,
    policy: opt.PolicyOption = None,
    prompts: opt.Prompts = None,
    limit: opt.Limit = DEFAULT_LIMIT,
    max_tokens: opt.MaxTokens = 64,
    passes: Annotated[int, typer.Option("--passes", help="Times each prompt is run by each drafter.", min=1)] = 2,
    temperature: opt.Temperature = 0.0,
    seed: opt.Seed = 0,
    warm: Annotated[bool, typer.Option("--warm", help="Keep the prompt cache between answers.")] = False,
    repeat_prompts: Annotated[
        bool, typer.Option("--repeat-prompts", help="Let drafters that learn meet a prompt again.")
    ] = False,
    random_weights: Annotated[
        str | None,
        typer.Option("--random-weights", help="A shape instead of a model, for example llama-8b: synthetic figures."),
    ] = None,
    draft_shape: Annotated[
        str | None, typer.Option("--random-draft", help="A shape for the draft, for example llama-1b: synthetic.")
    ] = None,
    synthetic_acceptance: Annotated[
        float | None,
        typer.Option("--synthetic-acceptance", help="Accept each drafted token with this chance: synthetic figures."),
    ] = None,
    streams: Annotated[
        str,
        typer.Option("--streams", help="With --engine: requests at the same time.", rich_help_panel=eng.PANEL),
    ] = eng.DEFAULT_STREAMS,
    one_at_a_time: Annotated[
        bool,
        typer.Option(
            "--one-at-a-time", help="With --engine: two starts instead of two instances.", rich_help_panel=eng.PANEL
        ),
    ] = False,
    engine: eng.Engine = None,
    url: eng.Url = None,
    plain_url: eng.PlainUrl = None,
    api_key: eng.ApiKey = None,
    api_key_file: eng.ApiKeyFile = None,
    program: eng.Program = None,
    engine_args: eng.EngineArgs = "",
    start_limit: eng.StartLimit = 600.0,
    report: Annotated[Path | None, typer.Option("--report", help="Also write a self-contained HTML report.")] = None,
    device: opt.Device = "auto",
    dtype: opt.DType = "auto",
    context: opt.Context = None,
    threads: opt.Threads = None,
    backend: opt.BackendOption = None,
    gpu_layers: opt.GpuLayers = None,
    kv_type: opt.KvType = "auto",
    as_json: opt.Json = False,
) -> None:
    """Measure plain against speculative decoding: same loop, same timer, interleaved, text compared.

    Ctrl-C ends it early and shows what was measured so far, labelled as partial.

    [bold]Examples[/bold]

      slipstream bench

      slipstream bench --model big.gguf --draft small.gguf --prompts question.jsonl --limit 40 --report out.html

      slipstream bench --engine llama-server --model big.gguf --draft small.gguf --streams 1,4,16

      slipstream bench --random-weights llama-8b --random-draft llama-1b --synthetic-acceptance 0.8
    """
    from slipstream.bench.runner import BenchSettings
    from slipstream.bench.synthetic import SyntheticSettings
    from slipstream.cli.loading import load_models, load_synthetic
    from slipstream.core.sampling import Sampling
    from slipstream.core.stream import Limits

    workload = opt.read_workload(prompts, limit)
    settings = BenchSettings(
        sampling=Sampling(temperature=temperature, seed=seed),
        limits=Limits(max_tokens, ignore_eos=random_weights is not None),
        passes=passes,
        seed=seed,
        warm_prompts=warm,
        keep_learned=repeat_prompts,
    )
    command = opt.command_line()
    if engine:
        from slipstream.cli.bench_engine import Contest, bench_engine, read_streams

        eng.refuse_with_engine(device=device, dtype=dtype, threads=threads, backend=backend, gpu_layers=gpu_layers,
                               kv_type=kv_type, random_weights=random_weights,
                               random_draft=draft_shape, synthetic_acceptance=synthetic_acceptance)  # fmt: skip
        counts = read_streams(streams)
        choice = eng.EngineChoice(engine, program, engine_args, start_limit, context or eng.BENCH_CONTEXT, max(counts))
        drafting = eng.Drafting.resolve(engine, model, draft, None, policy)
        names = drafter.split(",") if drafter else []
        key = eng.read_api_key(api_key, api_key_file)
        contest = Contest(choice, drafting, names, url, plain_url, key, one_at_a_time, warm)
        _finish(bench_engine(contest, workload, settings, counts, command), report, as_json)
        return
    eng.refuse_without_engine(url=url, plain_url=plain_url, program=program, engine_args=engine_args)
    synthetic = SyntheticSettings.checked(random_weights, draft_shape, synthetic_acceptance)
    chosen = opt.LoadSettings.resolve(
        model, draft, None, policy, device, dtype, context, threads, False,
        backend, gpu_layers, kv_type,
    )  # fmt: skip
    models = load_synthetic(chosen, synthetic) if synthetic else load_models(chosen)
    drafters = opt.split_drafters(drafter) if drafter else default_drafters(models)
    result = bench_models(models, drafters, workload, settings, command)
    if result.verdict.word in ("does not pay", "no difference") and not synthetic:
        result = replace(result, notes=[*result.notes, *what_would_help(chosen.model)])
    _finish(result, report, as_json)


def _finish(result: BenchResult, report: Path | None, as_json: bool) -> None:
    """Prints the result, then writes the report: each also where the other fails. Exit 1 where texts differ."""
    try:
        print_result(result, as_json)
        sys.stdout.flush()
    finally:
        if report:
            from dataclasses import asdict

            from slipstream.bench.report import write_report

            write_report(asdict(result), report)
    if result.verdict.word == "broken":
        raise typer.Exit(1)


def what_would_help(spec: str) -> list[str]:
    """In place of speculation, by this machine's figures: the most promising first."""
    from slipstream.doctor.alternatives import alternatives
    from slipstream.doctor.fit import Sizes
    from slipstream.doctor.machine import inspect
    from slipstream.doctor.model_facts import describe

    try:
        sizes = Sizes.of(describe(spec))
    except SlipstreamError:  # its files don't say enough
        return []
    return [f"what would help: {finding.cause} {finding.fix}" for finding in alternatives(inspect(), sizes)[:3]]


def default_drafters(models: Models) -> list[str]:
    from slipstream.loading import drafter_for

    drafters = opt.split_drafters(DEFAULT_DRAFTERS)
    return [*drafters, drafter_for(models.target, models.draft)] if models.draft else drafters


def bench_models(
    models: Models, drafters: Sequence[str], prompts: Sequence[Prompt], settings: BenchSettings, command: str
) -> BenchResult:
    """Plain decoding and the drafters on models that are loaded, with progress on stderr."""
    from slipstream.bench.engine_generator import EngineGenerator
    from slipstream.bench.measure import measure
    from slipstream.bench.results import PLAIN

    labels = [PLAIN, *(d for d in dict.fromkeys(drafters) if d != PLAIN)]
    generators = [EngineGenerator(label, partial(models.engine, label), models.verifier) for label in labels]
    described = {"model_spec": models.settings.model, "draft": models.settings.draft, "drafters": labels,
                 "policy": models.settings.policy}  # fmt: skip
    with progress_bar("measuring") as progress:
        return measure(
            models.target.model, generators, prompts, settings, described, command, progress, models.synthetic,
            models.forces_acceptance,
        )  # fmt: skip


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A bar on a terminal, a line now and then elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_every(title)
        return
    columns = (TextColumn(title), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _line_every(title: str, share: float = 0.25) -> Progress:
    shown = -share

    def report(done: int, total: int, what: str) -> None:
        nonlocal shown
        if total and done / total >= shown + share:
            shown = done / total
            print(f"{title}: {done} of {total}", file=sys.stderr)

    return report


def print_result(result: BenchResult, as_json: bool) -> None:
    if as_json:
        print(result.as_json())
        return
    from slipstream.bench.table import print_table

    print_table(result)
