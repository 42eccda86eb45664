"""`slipstream demo`: the same prompts decoded plainly and speculatively, side by side."""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as opt

if TYPE_CHECKING:
    from slipstream.bench.side_by_side import Comparison
    from slipstream.core.protocols import ModelInfo


def demo(
    model: opt.Model = "smollm2-135m",
    drafter: Annotated[str, typer.Option("--drafter", help=opt.DRAFTER_HELP)] = "suffix",
    max_tokens: opt.MaxTokens = 96,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of each kind, interleaved.")] = 2,
    as_json: opt.Json = False,
) -> None:
    """See it work: four prompts decoded plainly and speculatively, with the text compared word for word.

    [bold]Examples[/bold]

      slipstream demo

      slipstream demo --drafter ngram --max-tokens 200
    """
    from slipstream.bench.prompts import DEMO_PROMPTS
    from slipstream.bench.side_by_side import compare
    from slipstream.cli.loading import load_target
    from slipstream.core.sampling import Sampling
    from slipstream.core.stream import Limits
    from slipstream.drafters import parse_drafter
    from slipstream.loading import load

    parse_drafter(drafter)
    limits = Limits(max_tokens)
    target = load_target(model)
    load(target, drafter="none").generate("Warm up.", None, Limits(8)).result()
    rows = compare(
        lambda speculative: load(target, drafter=drafter if speculative else "none"),
        DEMO_PROMPTS, Sampling(), limits, repeats,
    )  # fmt: skip
    done = _with_progress(rows, len(DEMO_PROMPTS))
    if as_json:
        print(json.dumps(_as_dict(done, target.model.info, drafter)))
    else:
        _print_table(done, target.model.info, drafter)
    if not all(row.same_text for row in done):
        raise typer.Exit(1)


def _with_progress(rows: Any, total: int) -> list[Comparison]:
    from rich.console import Console
    from rich.progress import track

    return list(track(rows, "decoding both ways", total=total, console=Console(stderr=True), transient=True))


def _print_table(rows: list[Comparison], info: ModelInfo, drafter: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{info.name}, {info.dtype}, {info.device} ({platform.machine()}), greedy, drafter {drafter}")
    for column in ("kind of text", "plain tok/s", "ours tok/s", "speed-up", "accepted", "tok/forward", "same text"):
        table.add_column(column, justify="left" if column == "kind of text" else "right")
    for row in rows:
        table.add_row(
            row.kind, f"{row.plain_tokens_per_s:.1f}", f"{row.tokens_per_s:.1f}", f"{row.speedup:.2f}x",
            f"{row.acceptance_rate:.0%}", f"{row.tokens_per_forward:.2f}", "yes" if row.same_text else "NO",
        )  # fmt: skip
    console = Console()
    console.print(table)
    console.print("text identical:", "yes" if all(row.same_text for row in rows) else "NO")


def _as_dict(rows: list[Comparison], info: ModelInfo, drafter: str) -> dict[str, Any]:
    from dataclasses import asdict

    names = (
        "kind",
        "plain_tokens_per_s",
        "tokens_per_s",
        "speedup",
        "acceptance_rate",
        "tokens_per_forward",
        "same_text",
    )
    return {
        "model": asdict(info),
        "drafter": drafter,
        "text_identical": all(row.same_text for row in rows),
        "runs": [{name: getattr(row, name) for name in names} for row in rows],
    }
