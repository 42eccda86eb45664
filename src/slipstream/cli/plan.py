"""`slipstream plan`: does it fit, and how is it split? Memory for a target and a draft on given GPUs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as opt
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from rich.text import Text

    from slipstream.doctor.fit import Sizes
    from slipstream.doctor.plan import GpuShare, Plan
    from slipstream.doctor.stated_sizes import Stated

BAR_COLUMNS = 40
TARGET, DRAFT, SHAPE = "Target", "Draft", "Shape of a target that is not at hand"


def plan(
    target: Annotated[
        str | None, typer.Option("--target", "-m", help="The target, if it is here.", rich_help_panel=TARGET)
    ] = None,
    weights_gb: Annotated[
        float | None,
        typer.Option("--weights-gb", help="The size of its weights, if it is not.", rich_help_panel=TARGET),
    ] = None,
    draft: Annotated[str | None, typer.Option("--draft", "-d", help="The draft.", rich_help_panel=DRAFT)] = None,
    draft_weights_gb: Annotated[
        float | None, typer.Option("--draft-weights-gb", help="The size of its weights.", rich_help_panel=DRAFT)
    ] = None,
    draft_like: Annotated[
        str | None,
        typer.Option("--draft-like", help="A published model of its shape.", rich_help_panel=DRAFT),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option("--like", help="A published model, for example Llama-3.3-70B-Instruct.", rich_help_panel=SHAPE),
    ] = None,
    layers: Annotated[int | None, typer.Option("--layers", help="Layers.", min=1, rich_help_panel=SHAPE)] = None,
    kv_heads: Annotated[int | None, typer.Option("--kv-heads", help="KV heads.", min=1, rich_help_panel=SHAPE)] = None,
    head_dim: Annotated[
        int | None, typer.Option("--head-dim", help="Numbers of a head.", min=1, rich_help_panel=SHAPE)
    ] = None,
    context: Annotated[int, typer.Option("--context", help="Tokens of prompt and answer.", min=1)] = 8192,
    kv: Annotated[str, typer.Option("--kv", help="How the KV cache is stored: f16, q8 or q4.")] = "f16",
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", help="Sizes of the GPUs as sold, for example 32,24. Default: those that are here."),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Machines with these GPUs each (vllm, sglang).", min=1)] = 1,
    engine: Annotated[
        str,
        typer.Option("--engine", help="llama.cpp, ollama, exllama, tabbyapi, vllm, sglang, transformers, slipstream."),
    ] = "llama.cpp",
    as_json: opt.Json = False,
) -> None:
    """Plan the memory of a target and a draft: what fits, how to split it, the longest context.

    Weights count as stored and the KV cache to the byte; buffers and the engine's own share are typical values.
    Exits with 1 when it does not fit.

    [bold]Examples[/bold]

      slipstream plan --target big.gguf --draft small.gguf --context 16384 --kv q8

      slipstream plan --weights-gb 22 --like Llama-2-70b-chat-hf --draft-weights-gb 0.6
      --draft-like TinyLlama-1.1B-Chat-v1.0 --context 16384 --kv q4 --gpus 32,24 --engine tabbyapi

      slipstream plan --weights-gb 812 --like Llama-3.1-405B-Instruct --gpus 80,80,80,80,80,80,80,80 --nodes 2
      --engine vllm
    """
    from slipstream.doctor.fit import KV_BYTES
    from slipstream.doctor.plan import check
    from slipstream.doctor.plan import plan as make_plan
    from slipstream.doctor.stated_sizes import Stated

    kv_type = next((name for name in KV_BYTES if name == kv), None)
    if kv_type is None:
        raise UsageError(f"--kv {kv!r}; expected {', '.join(KV_BYTES)}")
    stated = Stated(weights_gb, like, layers, kv_heads, head_dim) if weights_gb is not None else None
    draft_stated = Stated(draft_weights_gb, draft_like) if draft_weights_gb is not None else None
    main, notes = _sizes("target", "--target", target, stated)
    helper, more = _sizes("draft", "--draft", draft, draft_stated)
    if main is None:
        raise UsageError("name the target with --target, or give the size of its weights with --weights-gb")
    sizes, where = _gpu_sizes(gpus)
    made = make_plan(main, helper, context, kv_type, sizes, engine, nodes)
    notes = [*where, *notes, *more, *made.notes]
    if as_json:
        print(json.dumps(_as_dict(made, main, helper, notes)))
    else:
        _print(made, main, helper, notes)
    if any(finding.severity == "blocks" for finding in check(made)):
        raise typer.Exit(1)


def _sizes(name: str, option: str, spec: str | None, stated: Stated | None) -> tuple[Sizes | None, list[str]]:
    """The sizes of a model that is here, or as stated; None when neither was given."""
    from slipstream.doctor.fit import Sizes
    from slipstream.doctor.model_facts import describe
    from slipstream.doctor.stated_sizes import sizes_from

    if spec is not None and stated is not None:
        raise UsageError(f"{option} and the size of its weights exclude each other; give one of them")
    if spec is not None:
        return Sizes.of(describe(spec)), []
    return sizes_from(stated, name) if stated is not None else (None, [])


def _gpu_sizes(text: str | None) -> tuple[list[int], list[str]]:
    """Bytes of each GPU, and a line that says where they are from."""
    from slipstream.doctor.plan import GIB

    if text is not None:
        sizes = [int(number * GIB) for number in opt.parse_numbers(text, "--gpus")]
        if min(sizes) <= 0:
            raise UsageError(f"--gpus {text!r}; expected sizes above 0, for example 32,24")
        return sizes, []
    from slipstream.doctor.machine import inspect

    machine = inspect()
    if machine.gpus:
        return [gpu.memory_free for gpu in machine.gpus], [f"free now on {gpu.name}" for gpu in machine.gpus]
    return [machine.memory_free], ["no GPU here: planned for the free main memory"]


def _as_dict(made: Plan, main: Sizes, helper: Sizes | None, notes: list[str]) -> dict[str, Any]:
    from slipstream.doctor.plan import check

    return asdict(made) | {
        "schema": "slipstream.plan/1",
        "target": asdict(main),
        "draft": asdict(helper) if helper else None,
        "total_bytes": made.total_bytes,
        "gpus": [asdict(gpu) | {"used": gpu.used} for gpu in made.gpus],
        "notes": notes,
        "findings": [finding.as_dict() for finding in check(made)],
    }


def _print(made: Plan, main: Sizes, helper: Sizes | None, notes: list[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from slipstream.doctor.plan import check

    console = Console(highlight=False)
    title = (
        f"{main.name}{f' with {helper.name}' if helper else ''}, {made.context:,} tokens, KV {made.kv}, {made.engine}"
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for column, justify in (("", "left"), ("GB", "right"), ("", "left")):
        table.add_column(column, justify="right" if justify == "right" else "left")
    for part in made.parts:
        table.add_row(part.label, f"{part.num_bytes / 1e9:.2f}", part.why)
    console.print(table)
    for number, gpu in enumerate(made.gpus):
        if made.nodes > 1 and number % made.gpus_each == 0:
            console.print(f"machine {number // made.gpus_each + 1}", style="bold")
        console.print(_bar(number % made.gpus_each, gpu))
    console.print("█ target  ▓ draft  ▒ buffers and engine  · free", style="dim")
    console.print(f"{'fits' if made.fits else 'does NOT fit'}: {made.total_bytes / 1e9:.1f} GB in all", style="bold")
    console.print(f"longest context: {_context(made.max_context)}")
    if helper:
        console.print(f"without the draft: {_context(made.max_context_without_draft)}")
    for finding in check(made):
        console.print(f"{finding.id}: {finding.fix}")
    for note in notes:
        console.print(f"note: {note}", style="dim")


def _context(tokens: int) -> str:
    return f"{tokens:,} tokens" if tokens else "none fits"


def _bar(number: int, gpu: GpuShare) -> Text:
    """One GPU as a bar of target, draft, overhead and what is free."""
    from rich.text import Text

    bar = Text(f"GPU {number} ")
    full = max(gpu.capacity, gpu.used)
    for num_bytes, sign, style in (
        (gpu.target_bytes, "█", "blue"), (gpu.draft_bytes, "▓", "green"), (gpu.overhead_bytes, "▒", "yellow"),
        (full - gpu.used, "·", "dim"),
    ):  # fmt: skip
        bar.append(sign * max(round(BAR_COLUMNS * num_bytes / full), 1 if num_bytes else 0), style=style)
    bar.append(f" {gpu.used / 1e9:.1f} of {gpu.capacity / 1e9:.1f} GB", style="" if gpu.used <= gpu.capacity else "red")
    bar.append(f", {gpu.num_layers} layers{', draft' if gpu.draft_bytes else ''}")
    return bar
