"""The console for results, and TerminalReporter: the progress of a task on stderr, as bars or occasional lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from slipstream.tasks.reporter import Reporter

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

_LINE_EVERY = 0.25  # share of the work between two lines, if there is no terminal
PIPED_WIDTH = 110  # columns where there is no terminal


def result_console(piped_width: int = PIPED_WIDTH) -> Console:
    """The console for results on stdout. Texts of users are printed as they are: `:name:` and `[brackets]` too."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else piped_width
    return Console(highlight=False, markup=False, emoji=False, width=width)


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> Table:
    """Cells are printed as they are. Columns in `right` hold figures, which are not wrapped; others are folded."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        is_right = column in right
        table.add_column(column, justify="right" if is_right else "left", overflow="fold", no_wrap=is_right)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


class TerminalReporter(Reporter):
    """`title` is what the task does: "measuring". Its bars stay until `close`, or the end of the `with` block."""

    def __init__(self, title: str = "working") -> None:
        self._title = title
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said = -_LINE_EVERY

    def say(self, line: str) -> None:
        print(f"slipstream: {line}", file=sys.stderr, flush=True)

    def loading(self, what: str, share: float) -> None:
        self._show(f"loading {what}", share, 1.0, "")

    def phase(self, title: str) -> None:
        if self._bars and self._title in self._tasks:
            self._bars.remove_task(self._tasks.pop(self._title))
        self._title, self._said = title, -_LINE_EVERY

    def progress(self, done: float, total: float, what: str) -> None:
        self._show(self._title, done, total, what)
        if not sys.stderr.isatty() and total and done / total >= self._said + _LINE_EVERY:
            self._said = done / total
            print(f"{self._title}: {done:.0f} of {total:.0f}", file=sys.stderr)

    def close(self) -> None:
        """Removes the bars from the terminal."""
        if self._bars:
            self._bars.stop()
            self._bars, self._tasks = None, {}

    def __enter__(self) -> TerminalReporter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _show(self, title: str, done: float, total: float, what: str) -> None:
        """One bar per title; a full bar is removed."""
        if not sys.stderr.isatty():
            return
        if self._bars is None:
            self._bars = _new_bars()
        if title not in self._tasks:
            self._tasks[title] = self._bars.add_task(title, what="")
        self._bars.update(self._tasks[title], completed=done, total=total, what=what)
        if done >= total:
            self._bars.remove_task(self._tasks.pop(title))


def _new_bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"), TimeRemainingColumn())
    bars = Progress(*columns, console=Console(stderr=True), transient=True)
    bars.start()
    return bars
