"""`slipstream compare`: what changed between two benchmark results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as opt
from slipstream.cli.terminal import result_console

if TYPE_CHECKING:
    from slipstream.measurement.regression import Change
    from slipstream.measurement.results import Interval

_NAMES = {
    "tokens_per_s": "tokens/s", "speedup": "speed-up", "mean_accepted_length": "accepted length",
    "acceptance_rate": "acceptance",
}  # fmt: skip
_COLOURS = {"regression": "red", "improvement": "green", "note": "yellow"}


def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE.json", help="A result of slipstream bench --json.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER.json", help="A later result.")],
    as_json: opt.Json = False,
) -> None:
    """Show what changed between two benchmark results, beyond noise.

    A figure changed if the 95 % intervals don't overlap and the medians differ by more than 5 %. The exit code is 1 if
    something got worse, so it can be used in CI.

    [bold]Examples[/bold]

      slipstream bench --json > before.json

      slipstream bench --json > after.json

      slipstream compare before.json after.json

      slipstream compare before.json after.json --json | jq .regressions
    """
    from slipstream.measurement.regression import compare as compare_results
    from slipstream.measurement.regression import sentence, unlike
    from slipstream.measurement.results import read_result

    first, second = read_result(before), read_result(after)
    changes = compare_results(first, second)
    warnings = unlike(first, second)
    if as_json:
        print(json.dumps(_to_dict(changes, warnings, sentence(changes)), ensure_ascii=False))
    else:
        for warning in warnings:
            print(f"slipstream: {warning}", file=sys.stderr)
        if changes:
            _print_table(changes)
        print(sentence(changes))
    if any(change.outcome == "regression" for change in changes):
        raise typer.Exit(1)


def _print_table(changes: list[Change]) -> None:
    """Shows medians only, so that it fits on a terminal; --json has the intervals."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from slipstream.measurement.table import print_fitted

    table = Table(box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for column in ("drafter", "kind of text", "figure"):
        table.add_column(column)
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right", no_wrap=True)
    for change in changes:
        relative = change.relative
        table.add_row(
            Text(change.outcome, style=_COLOURS[change.outcome]), Text(change.drafter), Text(change.kind),
            Text(_describe(change)), _median(change.before), _median(change.after),
            "" if relative is None else f"{relative:+.1%}",
        )  # fmt: skip
    print_fitted(result_console(), table)


def _describe(change: Change) -> str:
    name = _NAMES.get(change.metric, "")
    return f"{name} ({change.note})" if name and change.note else name or change.note


def _median(interval: Interval | None) -> str:
    return f"{interval.value:.2f}" if interval else ""


def _to_dict(changes: list[Change], warnings: list[str], summary: str) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "schema": "slipstream.compare/1",
        "summary": summary,
        "regressions": sum(change.outcome == "regression" for change in changes),
        "improvements": sum(change.outcome == "improvement" for change in changes),
        "changes": [{**asdict(change), "relative": change.relative} for change in changes],
        "warnings": warnings,
    }
