"""A benchmark's result on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from slipstream.measurement.ratio import ratio
from slipstream.measurement.results import (
    ALL_KINDS,
    NOT_COMPARED,
    NOTHING_DRAFTED,
    NOTHING_SHOWN,
    PLAIN,
    BenchResult,
    Run,
    VerdictWord,
    text_comparison,
)

_COLOURS: dict[VerdictWord, str] = {
    "pays": "green",
    "does not pay": "red",
    "broken": "bold red",
    "no difference": "yellow",
    NOTHING_DRAFTED: "red",
}
_TEXT = {
    "yes": "text identical: yes",
    "no": "text identical: NO",
    "forced": "text identical: not comparable, because acceptance was forced",
    "nothing drafted": NOTHING_SHOWN,
}
_INTERVAL = "95 % interval"
_COLUMNS = ("kind", "drafter", "tok/s", "speed-up", _INTERVAL, "accepted", "tok/round", "verdict")
_LEFT = ("kind", "drafter", "verdict")
_PIPED_WIDTH = 100  # columns, where the table needs no more
_ENDLESS = 100_000


def print_table(result: BenchResult) -> None:
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, emoji=False)
    print_fitted(console, _table(result, _COLUMNS), _table(result, [c for c in _COLUMNS if c != _INTERVAL]))
    word = result.verdict.word
    console.print(f"verdict: [{_COLOURS.get(word, 'white')}]{word}[/] – {escape(result.verdict.why)}", highlight=False)
    told = _TEXT[text_comparison(result.to_dict()["runs"])]
    console.print(f"text identical: {word}" if word == NOT_COMPARED else told)
    console.print(_fine_print(result), style="dim", highlight=False, markup=False)


def print_fitted(console: Console, table: Table, narrower: Table | None = None) -> None:
    """A pipe becomes as wide as the table, so that nothing is cut. On a terminal without room `narrower` is printed."""
    needed = Measurement.get(console, console.options.update(max_width=_ENDLESS), table).maximum
    if not console.file.isatty():
        console.width = max(console.width, needed)
    console.print(narrower if narrower and needed > console.width else table)


def _table(result: BenchResult, shown: Sequence[str]) -> Table:
    table = Table(title=_title(result), box=box.SIMPLE_HEAD, pad_edge=False)
    for column in shown:
        is_left = column in _LEFT
        table.add_column(column, justify="left" if is_left else "right", no_wrap=not is_left, overflow="fold")
    for kind in dict.fromkeys(run.kind for run in result.runs):
        rows = [run for run in result.runs if run.kind == kind]
        for number, run in enumerate(rows, start=1):
            name = ("all kinds" if kind == ALL_KINDS else escape(kind)) if number == 1 else ""
            cells = {"kind": name} | _cells(run)
            table.add_row(*(cells.get(column, "") for column in shown), end_section=number == len(rows))
    return table


def _title(result: BenchResult) -> str:
    chosen = result.settings
    labels = [word for word, shown in (("synthetic", result.synthetic), ("partial", result.partial)) if shown]
    head = f"{'/'.join(labels).upper()} " if labels else ""
    return (
        f"{head}{escape(chosen['model'])}, {chosen['dtype']}, {chosen['device']} ({result.machine.processor}, "
        f"{result.machine.cores} cores), temperature {chosen['temperature']}, seed {chosen['seed']}"
    )


def _cells(run: Run) -> dict[str, str]:
    if run.drafter == PLAIN:
        return {"drafter": "plain", "tok/s": f"{run.tokens_per_s:.1f}"}
    colour = _COLOURS.get(run.verdict.word, "white")
    is_compared = run.verdict.word not in (NOT_COMPARED, NOTHING_DRAFTED)
    return {
        "drafter": escape(run.drafter),
        "tok/s": f"{run.tokens_per_s:.1f}",
        "speed-up": f"{run.speedup.value:.2f}x" if is_compared else "–",
        _INTERVAL: f"{run.speedup.low:.2f}–{run.speedup.high:.2f}" if is_compared else "–",
        "accepted": f"{run.acceptance_rate:.0%}" if run.num_drafted else "–",
        "tok/round": f"{run.mean_accepted_length:.2f}",
        "verdict": f"[{colour}]{run.verdict.word}[/]",
    }


def _fine_print(result: BenchResult) -> str:
    """Definitions of the columns, and the speed compared with the machine's limits."""
    plain = next((r for r in result.runs if r.drafter == PLAIN and r.kind == ALL_KINDS), None) or next(
        (r for r in result.runs if r.drafter == PLAIN), None
    )
    rows = ", ".join(f"{c.rows}: {c.over_one:.2f}x" for c in result.cost_by_rows)
    lines = [
        "tok/s: after the first token; speed-up: median over prompts and passes (95 % interval); accepted: share of "
        "drafted tokens; tok/round: including the target's own token",
        *([f"time of a forward pass by number of tokens: {rows}"] if rows else []),
        *result.notes,
    ]
    if plain and result.machine.copy_gb_per_s:
        copy, read = result.machine.copy_gb_per_s, plain.read_gb_per_s
        lines.append(
            f"plain decoding reads weights at {read:.1f} GB/s, {ratio(read, copy):.0%} of the "
            f"{copy:.1f} GB/s (read + write) at which this {result.machine.device} copies memory"
        )
    if result.machine.gpus and result.machine.device == "cpu":
        lines.append(
            f"this ran on the CPU although the machine has a GPU ({result.machine.gpus[0]}): use --device cuda"
        )
    return "\n".join(lines)
