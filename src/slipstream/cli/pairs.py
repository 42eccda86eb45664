"""`slipstream pairs`: which models on this machine work together, and how fast."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as opt
from slipstream.errors import SlipstreamError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from slipstream.doctor.machine import Machine
    from slipstream.doctor.model_scan import Candidate
    from slipstream.doctor.pairs import Ranked

MEASURED = 3  # drafts that --measure runs
MEASURE_PROMPTS = 4
MEASURE_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Measured:
    """What a draft did with Slipstream's engine, beside what was predicted."""

    spec: str
    predicted_speedup: float
    speedup: float
    tokens_per_s: float
    acceptance_rate: float
    verdict: str


def pairs(
    target: Annotated[
        str | None, typer.Option("--target", "-m", help="Rank drafts for this model. Default: list all groups.")
    ] = None,
    search: Annotated[
        list[Path] | None, typer.Option("--search", help="A folder to look in as well; may be repeated.")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", help="Tokens of the workload: drafts trained for less drop out.", min=1)
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help=f"Run the best {MEASURED} for real, with Slipstream's own engine.")
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="slipstream expands weights to 2 bytes (GPU) or 4 (CPU), others read them as stored. "
            "Default: llama.cpp, and slipstream with --measure.",
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Find the models that share a vocabulary, and rank drafts for a target by predicted speed-up on this machine.

    Looks in the hub cache, Ollama's store, the built-in models and the folders given. Exits with 1 when a target is
    named and nothing can draft for it.

    [bold]Examples[/bold]

      slipstream pairs

      slipstream pairs --target ollama:llama3.2:3b

      slipstream pairs --target big.gguf --search ~/models --context 8192 --measure
    """
    from slipstream.doctor.machine import inspect
    from slipstream.doctor.pairs import candidate, find, rank
    from slipstream.models.files import expand_home

    for folder in search or []:
        if not expand_home(folder).exists():
            raise UsageError(f"--search {folder}: there is no such folder")
    if measure and (target is None or engine not in (None, "slipstream")):
        raise UsageError("--measure needs --target, and runs Slipstream's own engine only: leave --engine out")
    found = find(search or [])
    if target is None:
        _show_groups(found, as_json)
        return
    wanted, machine = candidate(target), inspect()
    engine = engine or ("slipstream" if measure else "llama.cpp")
    ranked = rank(wanted, found, machine, context, as_stored=engine != "slipstream")
    measured = _measure(wanted, ranked) if measure else []
    if as_json:
        print(json.dumps(_as_dict(wanted, ranked, machine, measured) | {"engine": engine}))
    else:
        _print(wanted, ranked, machine, measured, engine)
    if not any(entry.prediction for entry in ranked):
        raise typer.Exit(1)


# -- all groups -------------------------------------------------------------------------------------------------------


def _show_groups(found: list[Candidate], as_json: bool) -> None:
    from slipstream.doctor.pairs import groups

    grouped = groups(found)
    broken = [entry for entry in found if entry.problem]
    if as_json:
        print(
            json.dumps(
                {
                    "schema": "slipstream.pairs/1",
                    "groups": [
                        {"vocabulary": key, "family": members[0].family, "models": [_model(m) for m in members]}
                        for key, members in grouped.items()
                    ],
                    "unreadable": [_model(entry) for entry in broken],
                }
            )
        )
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not found:
        console.print("No models were found. Fetch one (slipstream pull, ollama pull) or name a folder with --search.")
    for members in grouped.values():
        first, together = members[0], "these work together" if len(members) > 1 else "no other model here shares it"
        console.print(f"{first.family or 'unknown family'}, {first.num_tokens:,} tokens: {together}", style="bold")
        for member in members:
            console.print(f"  {member.spec}  {_size(member)}", markup=False)
    _print_broken(console, broken)


def _print_broken(console: Console, broken: list[Candidate]) -> None:
    if broken:
        console.print("can't be used:", style="bold")
    for entry in broken:
        console.print(f"  {entry.spec}: {entry.problem}", markup=False)


def _size(found: Candidate) -> str:
    sizes = found.sizes
    return f"{sizes.num_parameters / 1e9:.2f} B, {sizes.weight_bytes / 1e9:.2f} GB" if sizes else ""


# -- one target -------------------------------------------------------------------------------------------------------


def _print(wanted: Candidate, ranked: list[Ranked], machine: Machine, measured: list[Measured], engine: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    if wanted.problem:
        console.print(f"{wanted.spec} can't be used: {wanted.problem}", markup=False)
        return
    console.print(_headline(wanted, machine), markup=False)
    usable = [entry for entry in ranked if entry.prediction]
    if usable:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("draft", "predicted", "tokens/s", "n_draft", "p_min", "accepted", ""):
            left = column in ("draft", "")
            table.add_column(column, justify="left" if left else "right", overflow="fold", no_wrap=not left)
        for entry in usable:
            table.add_row(*map(Text, _cells(entry)))
        console.print(table)
        console.print(_fine_print(machine, engine), style="dim")
    else:
        _print_suggestions(console, wanted)
    for entry in (entry for entry in ranked if entry.rejection):
        console.print(f"no: {entry.candidate.spec}: {entry.rejection}", markup=False)
    if any("another vocabulary" in (entry.rejection or "") for entry in ranked):
        console.print("Slipstream can still draft across vocabularies, slower: --drafter translate", style="dim")
    for result in measured:
        console.print(
            f"measured: {result.spec}: {result.speedup:.2f}x (predicted {result.predicted_speedup:.2f}x), "
            f"{result.tokens_per_s:.1f} tokens/s, {result.acceptance_rate:.0%} accepted: {result.verdict}",
            markup=False,
        )


def _headline(wanted: Candidate, machine: Machine) -> str:
    gpu = machine.gpu_for(wanted.sizes.weight_bytes) if wanted.sizes else None
    return f"drafts for {wanted.spec} ({_size(wanted)}) on {gpu.name if gpu else machine.processor}"


def _cells(entry: Ranked) -> list[str]:
    prediction = entry.prediction
    assert prediction is not None  # the caller shows only these
    return [
        entry.candidate.spec, f"{prediction.speedup:.2f}x", f"{prediction.tokens_per_s:.1f}", str(prediction.n_draft),
        f"{prediction.p_min:.2f}", f"{prediction.acceptance:.0%}", entry.note or "",
    ]  # fmt: skip


def _fine_print(machine: Machine, engine: str) -> str:
    speeds = [f"{gpu.name} {gpu.read_bandwidth / 1e9:.0f} GB/s" for gpu in machine.gpus]
    speeds.append(f"CPU {machine.cpu_read_bandwidth / 1e9:.0f} GB/s")
    return (
        f"predicted from bytes read ({', '.join(speeds)}), weights as {engine} holds them, and a prior for acceptance; "
        "--measure tells. n_draft and p_min: llama.cpp --spec-draft-n-max and --spec-draft-p-min"
    )


def _print_suggestions(console: Console, wanted: Candidate) -> None:
    from slipstream.doctor.pairs import suggestions

    family, lines = suggestions(wanted)
    console.print("nothing here can draft for it.", style="bold")
    if family:
        console.print(f"Its vocabulary is {family.name}'s ({family.source}); these share it:")
    for line in lines:
        console.print(f"  {line}", markup=False)


def _as_dict(wanted: Candidate, ranked: list[Ranked], machine: Machine, measured: list[Measured]) -> dict[str, Any]:
    from slipstream.doctor.pairs import suggestions

    family, lines = suggestions(wanted)
    return {
        "schema": "slipstream.pairs/1",
        "target": _model(wanted),
        "machine": asdict(machine),
        "drafts": [
            _model(entry.candidate) | {"prediction": asdict(entry.prediction), "note": entry.note}
            for entry in ranked
            if entry.prediction
        ],
        "rejected": [_model(entry.candidate) | {"reason": entry.rejection} for entry in ranked if entry.rejection],
        "measured": [asdict(result) for result in measured],
        "family": {"name": family.name, "source": family.source} if family else None,
        "published": lines,
    }


def _model(found: Candidate) -> dict[str, Any]:
    return asdict(found) | {"path": str(found.path)}


# -- measuring --------------------------------------------------------------------------------------------------------


def _measure(wanted: Candidate, ranked: list[Ranked]) -> list[Measured]:
    """The best few drafts on the project's own prompts; a draft that this engine can't load is skipped, and said."""
    results = []
    for entry in [entry for entry in ranked if entry.prediction][:MEASURED]:
        try:
            results.append(_run(wanted, entry))
        except SlipstreamError as error:
            print(f"slipstream: {entry.candidate.spec} was not measured: {error}", file=sys.stderr)
    return results


def _run(wanted: Candidate, entry: Ranked) -> Measured:
    from slipstream.bench.results import ALL_KINDS
    from slipstream.bench.runner import BenchSettings
    from slipstream.cli.bench import bench_models
    from slipstream.cli.loading import load_models
    from slipstream.core.stream import Limits

    spec = entry.candidate.spec
    models = load_models(opt.LoadSettings.resolve(wanted.spec, spec, None, None))
    settings = BenchSettings(limits=Limits(MEASURE_TOKENS), passes=1)
    workload = opt.read_workload(None, MEASURE_PROMPTS)
    result = bench_models(models, ["model"], workload, settings, opt.command_line())
    run = next((run for run in result.runs if run.drafter == "model" and run.kind == ALL_KINDS), None)
    if run is None or entry.prediction is None:
        raise SlipstreamError("it was interrupted before there was a figure")
    return Measured(
        spec, entry.prediction.speedup, run.speedup.value, run.tokens_per_s, run.acceptance_rate, run.verdict.word
    )
