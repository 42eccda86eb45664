"""`slipstream pairs`: which models on this machine work together, and the predicted speed."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import typer

from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.options import OptionSpec
from slipstream.cli.terminal import TerminalReporter, result_console, text_table
from slipstream.tasks.options import PairsOptions

if TYPE_CHECKING:
    from rich.console import Console

    from slipstream.catalogue.model_scan import FoundModel
    from slipstream.catalogue.pairs import Ranked
    from slipstream.predict.machine import Machine
    from slipstream.tasks.pairs import ModelGroups, RankedDrafts


@grouped(
    target=OptionSpec("--target -m", "Rank drafts for this model. Default: list all groups."),
    search=OptionSpec("--search", "An additional folder to search; may be repeated."),
    context=OptionSpec(
        "--context", "Tokens of the workload: drafts with a shorter context are excluded.", more={"min": 1}
    ),
    measure=OptionSpec("--measure", "Also measure the best three with Slipstream's own engine."),
    engine=OptionSpec(
        "--engine",
        "The engine that is to run them: its rules for weights and vocabularies decide. Default: llama.cpp for GGUF "
        "files, slipstream for folders and with --measure.",
    ),
)
def pairs(options: PairsOptions = PairsOptions(), as_json: opt.Json = False) -> None:
    """Find the models that share a vocabulary, and rank drafts for a target by predicted speed-up on this machine.

    Searches the hub cache, Ollama's store, the built-in models, the target's folder and the given ones. The exit code
    is 1 if a target is given and no model can draft for it.

    [bold]Examples[/bold]

      slipstream pairs

      slipstream pairs --target ollama:llama3.2:3b

      slipstream pairs --target big.gguf --search ~/models --context 8192 --measure
    """
    from slipstream.tasks.pairs import ModelGroups
    from slipstream.tasks.pairs import pairs as find_pairs

    with TerminalReporter("measuring") as reporter:
        result = find_pairs(options, reporter=reporter)
    if as_json:
        print(json.dumps(result.to_dict() | ({} if isinstance(result, ModelGroups) else {"command": _command(result)})))
    elif isinstance(result, ModelGroups):
        _show_groups(result)
    else:
        _print(result)
    if not isinstance(result, ModelGroups) and not result.usable:
        raise typer.Exit(1)


# -- all groups -------------------------------------------------------------------------------------------------------


def _show_groups(result: ModelGroups) -> None:
    console = result_console()
    if not result.groups and not result.unreadable:
        console.print(
            "No models were found. Download one (slipstream pull, ollama pull) or name a folder with --search."
        )
    for members in result.groups.values():
        first = members[0]
        together = "these work together" if len(members) > 1 else "no other model here has this vocabulary"
        console.print(f"{first.family or 'unknown family'}, {first.num_tokens:,} tokens: {together}", style="bold")
        for member in members:
            console.print(f"  {member.spec}  {_size(member)}")
    _print_broken(console, result.unreadable)
    if several := next((members for members in result.groups.values() if len(members) > 1), None):
        target = shlex.quote(several[0].spec)
        console.print(f"\ndrafts for one of them, and the command to run it: slipstream pairs --target {target}")


def _print_broken(console: Console, broken: list[FoundModel]) -> None:
    if broken:
        console.print("can't be used:", style="bold")
    for entry in broken:
        console.print(f"  {entry.spec}: {entry.problem}")


def _size(found: FoundModel) -> str:
    sizes = found.sizes
    return f"{sizes.num_parameters / 1e9:.2f} B, {sizes.weight_bytes / 1e9:.2f} GB" if sizes else ""


# -- one target -------------------------------------------------------------------------------------------------------


def _print(result: RankedDrafts) -> None:
    wanted, machine = result.target, result.machine
    console = result_console()
    if wanted.problem:
        console.print(f"{wanted.spec} can't be used: {wanted.problem}")
        return
    console.print(_headline(wanted, machine))
    if result.usable:
        _print_table(console, result)
    else:
        _print_suggestions(console, result)
    _print_skipped(console, result)
    for pair in result.measured:
        console.print(
            f"measured: {pair.spec}: {pair.speedup:.2f}x (predicted {pair.predicted_speedup:.2f}x), "
            f"{pair.tokens_per_s:.1f} tokens/s, {pair.acceptance_rate:.0%} accepted: {pair.verdict}"
        )
    _print_command(console, result)


def _print_command(console: Console, result: RankedDrafts) -> None:
    from slipstream.predict.speed import WORTH_IT

    if command := _command(result):
        best = result.usable[0].prediction
        pays = best is not None and best.speedup >= WORTH_IT
        title = "to run the best pair" if pays else "no pair is expected to pay off here; to try the best one"
        console.print(f"\n{title} with {result.engine}:", style="bold")
        console.print(command, soft_wrap=True)


def _command(result: RankedDrafts) -> str | None:
    """How to run the best pair with the engine; None if no model can draft."""
    from slipstream.tasks.pair_command import pair_command

    best = next(iter(result.usable), None)
    if best is None or best.prediction is None:
        return None
    length, p_min = best.prediction.n_draft, best.prediction.p_min
    return pair_command(result.engine, result.target.spec, best.candidate.spec, length, p_min)


def _print_table(console: Console, result: RankedDrafts) -> None:
    figures = ("predicted", "tokens/s", "n_draft", "p_min", "accepted")
    console.print(text_table(("draft", *figures, ""), map(_cells, result.usable), right=figures))
    console.print(_fine_print(result.machine, result.engine), style="dim")


def _print_skipped(console: Console, result: RankedDrafts) -> None:
    """The models that can't draft for the target, each with the reason."""
    skipped = [entry for entry in result.ranked if entry.rejection]
    if skipped:
        console.print(f"\nskipped, of {len(result.ranked)} models found:", style="bold")
    for entry in skipped:
        console.print(f"  {entry.candidate.spec}: {entry.rejection}")
    if any("another vocabulary" in (entry.rejection or "") for entry in skipped):
        console.print(
            "Slipstream can still draft with another vocabulary, with lower acceptance: --drafter translate",
            style="dim",
        )


def _headline(wanted: FoundModel, machine: Machine) -> str:
    devices = " + ".join(gpu.name for gpu in machine.gpus) or machine.processor
    return f"drafts for {wanted.spec} ({_size(wanted)}) on {devices}"


def _cells(entry: Ranked) -> list[str]:
    prediction = entry.prediction
    assert prediction is not None  # the caller passes only entries with a prediction
    return [
        entry.candidate.spec, f"{prediction.speedup:.2f}x", f"{prediction.tokens_per_s:.1f}", str(prediction.n_draft),
        f"{prediction.p_min:.2f}", f"{prediction.acceptance:.0%}", entry.note or "",
    ]  # fmt: skip


def _fine_print(machine: Machine, engine: str) -> str:
    speeds = [f"{gpu.name} {gpu.read_bandwidth / 1e9:.0f} GB/s" for gpu in machine.gpus]
    speeds.append(f"CPU {machine.cpu_read_bandwidth / 1e9:.0f} GB/s")
    return (
        f"predicted from the bytes read ({', '.join(speeds)}) with weights as {engine} stores them, and a typical "
        "acceptance; --measure measures it. n_draft and p_min: llama.cpp --spec-draft-n-max and --spec-draft-p-min"
    )


def _print_suggestions(console: Console, result: RankedDrafts) -> None:
    family, lines = result.published()
    console.print("no model here can draft for it.", style="bold")
    console.print("If another folder has models, name it: --search FOLDER")
    if family:
        console.print(
            f"Its vocabulary is that of {family.name} ({family.source}). Published models with the same vocabulary:"
        )
    for line in lines:
        console.print(f"  {line}")
