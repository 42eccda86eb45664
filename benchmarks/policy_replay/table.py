"""The comparison as text."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from policy_replay.compare import Cell
from policy_replay.summary import LEAST_OVER_PLAIN, Summary

_HEAD = (
    f"{'machine':<22} {'drafter':<11} {'streams':>7}  {'kind':<15} {'plain tok/s':>11} "
    f"{'auto':>7} {'fixed':>7} {'best':>7} {'was':>7}"
)


def rows(cells: Sequence[Cell], baseline: dict[str, float], every_kind: bool) -> list[str]:
    """A line a cell; without `every_kind` the worst and the median of the kinds of prompt."""
    lines = [_HEAD]
    groups: dict[tuple[str, str, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.machine, cell.drafter, cell.streams].append(cell)
    for _, group in sorted(groups.items()):
        if every_kind or group[0].streams > 1:
            lines += [_row(cell, baseline) for cell in group]
        else:
            lines += [_median(group, baseline), _row(min(group, key=lambda cell: cell.auto), baseline, "worst: ")]
    return lines


def _row(cell: Cell, baseline: dict[str, float], prefix: str = "") -> str:
    was = f"{baseline[cell.key]:.3f}" if cell.key in baseline else "-"
    mark = "" if cell.auto >= LEAST_OVER_PLAIN else "  below the bound"
    if mark and baseline.get(cell.key, 1.0) < LEAST_OVER_PLAIN:
        mark += ", as it was"
    return (
        f"{cell.machine:<22} {cell.drafter:<11} {cell.streams:>7}  {prefix + cell.kind:<15.15} "
        f"{cell.plain_tokens_per_s:>11.1f} {cell.auto:>7.3f} {cell.best_fixed:>7.3f} {cell.possible:>7.3f} "
        f"{was:>7}{mark}"
    )


def _median(group: Sequence[Cell], baseline: dict[str, float]) -> str:
    middle = {
        name: statistics.median(getattr(cell, name) for cell in group) for name in ("auto", "best_fixed", "possible")
    }
    known = [baseline[cell.key] for cell in group if cell.key in baseline]
    first = group[0]
    was = f"{statistics.median(known):.3f}" if known else "-"
    return (
        f"{first.machine:<22} {first.drafter:<11} {first.streams:>7}  {'median of kinds':<15} "
        f"{statistics.median(c.plain_tokens_per_s for c in group):>11.1f} {middle['auto']:>7.3f} "
        f"{middle['best_fixed']:>7.3f} {middle['possible']:>7.3f} {was:>7}"
    )


def summary_lines(summary: Summary) -> list[str]:
    lines = [
        f"{summary.cells} cells; over plain: mean {summary.mean_speedup:.3f}x, "
        f"worst {summary.worst_over_plain:.3f}x ({summary.worst_cell})",
        f"slower than {LEAST_OVER_PLAIN}x of plain: {len(summary.slower_than_plain)} cells",
    ]
    if summary.share_of_fixed is not None and summary.share_of_possible is not None:
        lines.append(
            f"of the gain of the best fixed length: {summary.share_of_fixed:.0%}; "
            f"of the best choice per round: {summary.share_of_possible:.0%}"
        )
    if summary.mean_over_baseline is not None:
        lines.append(
            f"over the baseline: mean {summary.mean_over_baseline:.3f}x; "
            f"slower than the bound: {len(summary.slower_than_baseline)} cells"
        )
        worst = sorted(summary.slower_than_baseline.items(), key=lambda item: item[1])[:10]
        lines += [f"  {key}: {ratio:.3f}x of the baseline" for key, ratio in worst]
    return lines
