"""Speeds in tables, as people post them: plain and speculative ones in two tables, in rows or in columns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low

from slipstream.diagnosis.log_figures import NUMBER, number
from slipstream.diagnosis.log_sections import SpeedPair, label_in, label_of
from slipstream.parsing.log_scan import Hit

_RULE = re.compile(r"^[\s|:+-]*-[\s|:+-]*$")  # the line under a table's heading
_SPEED = re.compile(r"(?i)throughput|tok(?:en)?s?/s|\bt/s|\btps\b|tokens per sec|tokens_per_s|speed(?!-?up)")
_NO_SPEED = re.compile(r"(?i)prompt|prefill|input|\bpp\d*\b|req")
_DRAFTING = re.compile(r"(?i)num[ _]draft|draft|acc(?:ept\w*)?[ _.]*(?:len|rate)|\btop-?k\b|num[ _]steps|\bsteps\b")
_VALUE = re.compile(rf"^[*~ ]*(?P<value>{NUMBER})")
_LONGEST_TEXT = 200_000  # characters: a report, no log


@dataclass(frozen=True, slots=True)
class _Row:
    at: int
    line: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Speed:
    """`key`: the first cell of the row, such as a batch size: only rows with the same one are compared."""

    label: str
    key: str
    value: float
    row: _Row


def slower_table(text: str, limit: float) -> SpeedPair | None:
    """A row with speculation, if in most rows that can be compared the best speed with it is below the plain one."""
    if "|" not in text or len(text) > _LONGEST_TEXT:
        return None
    found: dict[str, dict[str, list[_Speed]]] = defaultdict(lambda: defaultdict(list))
    for speed in _speeds(text):
        found[speed.key][speed.label].append(speed)
    pairs = [_compared(labels) for labels in found.values() if set(labels) >= {"plain", "speculative"}]
    slower = [pair for pair in pairs if pair.speculative < limit * pair.plain]
    return slower[0] if len(slower) * 2 > len(pairs) else None


def _compared(labels: dict[str, list[_Speed]]) -> SpeedPair:
    best = max(labels["speculative"], key=lambda speed: speed.value)
    first = labels["speculative"][0].row
    return SpeedPair(Hit(first.at, first.line, {}), median_low(one.value for one in labels["plain"]), best.value)


def _speeds(text: str) -> Iterator[_Speed]:
    for heading, header, rows in _tables(text):
        is_drafting = any(_DRAFTING.search(cell) or label_in(cell) == "speculative" for cell in header)
        table = label_of(heading) or ("speculative" if is_drafting else "plain")
        for column, name in enumerate(header):
            of_column = label_in(name)
            if not _NO_SPEED.search(name) and (_SPEED.search(name) or (of_column and _SPEED.search(heading))):
                yield from _of_column(column, rows, of_column, table)


def _of_column(column: int, rows: Sequence[_Row], of_column: str, table: str) -> Iterator[_Speed]:
    for row in rows:
        of_row = label_in(" ".join(cell for cell in row.cells if not _VALUE.search(cell)))
        value = _VALUE.search(row.cells[column]) if column < len(row.cells) else None
        if value and number(value["value"]):
            yield _Speed(of_column or of_row or table, "" if of_row else row.cells[0], number(value["value"]), row)


def _tables(text: str) -> Iterator[tuple[str, tuple[str, ...], list[_Row]]]:
    """The line above each table, the names of its columns, and its rows."""
    rows = list(_rows(text))
    heads = [i for i in range(len(rows) - 1) if rows[i].cells and _RULE.search(rows[i + 1].line)]
    for i, after in zip(heads, [*heads, len(rows)][1:], strict=True):
        body: list[_Row] = []
        for row in rows[i + 2 : after]:
            if not row.cells:
                break
            body.append(row)
        yield next((row.line for row in rows[i - 1 :: -1] if i and row.line), ""), rows[i].cells, body


def _rows(text: str) -> Iterator[_Row]:
    """All lines; those of a table with their cells."""
    at = 0
    for line in text.splitlines(keepends=True):
        said = line.strip()
        cells = tuple(cell.strip() for cell in said.strip("|").split("|")) if "|" in said else ()
        yield _Row(at, said, cells)
        at += len(line)
