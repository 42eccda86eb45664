"""`slipstream plan`: the memory of a target and a draft on given GPUs: whether it fits, and how to split it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.options import OptionSpec
from slipstream.cli.terminal import result_console
from slipstream.tasks.options import PlanOptions

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from slipstream.predict.placement import DeviceShare, MemoryPlacement
    from slipstream.tasks.plan import PlanResult

BAR_COLUMNS = 40
SPLIT_OPTIONS = {"gpu_split": "TabbyAPI: gpu_split:", "tensor_split": "llama.cpp: --tensor-split"}
TARGET, DRAFT, SHAPE = "Target", "Draft", "Shape of a target that is not on this machine"
_POSITIVE = {"min": 1}


@grouped(
    target=OptionSpec("--target -m", "The target, if it is on this machine.", TARGET),
    weights_gb=OptionSpec("--weights-gb", "The size of the target's weights, if it is not on this machine.", TARGET),
    draft=OptionSpec("--draft -d", "The draft.", DRAFT),
    draft_weights_gb=OptionSpec("--draft-weights-gb", "The size of the draft's weights.", DRAFT),
    draft_like=OptionSpec("--draft-like", "A published model with the draft's shape.", DRAFT),
    like=OptionSpec("--like", "A published model with the target's shape, for example Llama-3.3-70B-Instruct.", SHAPE),
    layers=OptionSpec("--layers", "Layers.", SHAPE, _POSITIVE),
    kv_heads=OptionSpec("--kv-heads", "KV heads.", SHAPE, _POSITIVE),
    head_dim=OptionSpec("--head-dim", "Dimensions per head.", SHAPE, _POSITIVE),
    context=OptionSpec("--context", "Tokens of prompt and answer. Default: 8192, assumed.", more=_POSITIVE),
    kv=OptionSpec("--kv", "How the KV cache is stored: f16, q8 or q4."),
    gpus=OptionSpec("--gpus", "Sizes of the GPUs as sold, for example 32,24. Default: the GPUs of this machine."),
    nodes=OptionSpec("--nodes", "Number of machines, each with these GPUs (vllm, sglang).", more=_POSITIVE),
    engine=OptionSpec("--engine", opt.ALL_ENGINES_HELP),
)
def plan(options: PlanOptions = PlanOptions(), as_json: opt.Json = False) -> None:
    """Plan the memory of a target and a draft: what fits, how to split it, and the longest context.

    Weights count as stored, and the KV cache is exact; buffers and the engine's own memory are typical values. The exit
    code is 1 if the models do not fit.

    [bold]Examples[/bold]

      slipstream plan --target big.gguf --draft small.gguf --context 16384 --kv q8

      slipstream plan --weights-gb 22 --like Llama-2-70b-chat-hf --draft-weights-gb 0.6
      --draft-like TinyLlama-1.1B-Chat-v1.0 --context 16384 --kv q4 --gpus 32,24 --engine tabbyapi

      slipstream plan --weights-gb 812 --like Llama-3.1-405B-Instruct --gpus 80,80,80,80,80,80,80,80 --nodes 2
      --engine vllm
    """
    from slipstream.tasks.plan import plan as make_plan

    result = make_plan(options)
    if as_json:
        print(json.dumps(result.to_dict()))
    else:
        _print(result)
    if not result.fits:
        raise typer.Exit(1)


def _print(result: PlanResult) -> None:
    from rich import box
    from rich.table import Table

    from slipstream.tasks.plan import split_settings

    made, main, helper = result.memory, result.target, result.draft
    console = result_console()
    title = (
        f"{main.name}{f' with {helper.name}' if helper else ''}, {made.context:,} tokens, KV {made.kv}, {made.engine}"
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for column, justify in (("", "left"), ("GB", "right"), ("", "left")):
        table.add_column(column, justify="right" if justify == "right" else "left")
    for part in made.parts:
        table.add_row(part.label, f"{part.num_bytes / 1e9:.2f}", part.why)
    console.print(table)
    _print_devices(console, made)
    console.print(f"{_verdict(result)}: {made.total_bytes / 1e9:.1f} GB in total", style="bold")
    console.print(f"longest context: {_context(made.max_context)}")
    if helper:
        console.print(f"without the draft: {_context(made.max_context_without_draft)}")
    for name, value in split_settings(made).items():
        console.print(f"{SPLIT_OPTIONS[name]} {value}", markup=False)
    if result.prediction:
        expected = result.prediction
        console.print(
            f"predicted: {expected.plain_tokens_per_s:.0f} tokens/s plain, {expected.tokens_per_s:.0f} tokens/s "
            f"({expected.speedup:.2f}x) with {expected.n_draft} drafted tokens per step, at an assumed acceptance of "
            f"{expected.acceptance:.0%}"
        )
    for finding in result.findings:
        console.print(f"{finding.title}: {finding.evidence}. {finding.fix}  ({finding.id})", markup=False)
    for note in result.notes:
        console.print(f"note: {note}", style="dim", markup=False)


def _print_devices(console: Console, made: MemoryPlacement) -> None:
    for number, gpu in enumerate(made.gpus):
        if made.nodes > 1 and number % made.gpus_each == 0:
            console.print(f"machine {number // made.gpus_each + 1}", style="bold")
        console.print(_bar(f"GPU {number % made.gpus_each}", gpu))
    if made.main:
        console.print(_bar("RAM", made.main))
    console.print("█ target  ▓ draft  ▒ buffers and engine  · free", style="dim")


def _verdict(result: PlanResult) -> str:
    made = result.memory
    if not result.fits:
        return "does NOT fit" if made.is_refused else "can't be used"
    return "fits" if made.fits else f"fits up to a context of {made.max_context:,}"


def _context(tokens: int) -> str:
    return f"{tokens:,} tokens" if tokens else "none fits"


def _bar(name: str, gpu: DeviceShare) -> Text:
    """One device as a bar of target, draft, overhead and free memory."""
    from rich.text import Text

    bar = Text(f"{name} ")
    full = max(gpu.capacity, gpu.used)
    for num_bytes, sign, style in (
        (gpu.target_bytes, "█", "blue"), (gpu.draft_bytes, "▓", "green"), (gpu.overhead_bytes, "▒", "yellow"),
        (full - gpu.used, "·", "dim"),
    ):  # fmt: skip
        bar.append(sign * max(round(BAR_COLUMNS * num_bytes / full), 1 if num_bytes else 0), style=style)
    bar.append(f" {gpu.used / 1e9:.1f} of {gpu.capacity / 1e9:.1f} GB", style="" if gpu.used <= gpu.capacity else "red")
    bar.append(f", {gpu.num_layers} layers{', draft' if gpu.draft_bytes else ''}")
    return bar
