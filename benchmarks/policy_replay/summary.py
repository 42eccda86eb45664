"""What the cells of a comparison come to, and the comparison with a stored baseline."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from policy_replay.compare import Cell

BASELINE = Path(__file__).parents[1] / "results" / "policy-baseline.json"
LEAST_OVER_PLAIN = 0.98  # of every cell
LEAST_OVER_BASELINE = 0.99  # of every cell: what the policy gained before it goes on gaining
_LEAST_POSSIBLE = 1.02  # gains below this are left out of the shares


@dataclass(frozen=True, slots=True)
class Summary:
    cells: int
    worst_over_plain: float
    worst_cell: str
    mean_speedup: float  # geometric, over all cells
    share_of_fixed: float | None  # of the gain of the best fixed length, over cells where that gains something
    share_of_possible: float | None  # of the gain of the best choice per round
    slower_than_plain: dict[str, float] = field(default_factory=dict)  # cells below the bound
    slower_than_baseline: dict[str, float] = field(default_factory=dict)  # over the baseline, below the bound
    mean_over_baseline: float | None = None

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def summarise(cells: Sequence[Cell], baseline: dict[str, float]) -> Summary:
    """Cells that the baseline does not have are not compared."""
    worst = min(cells, key=lambda cell: cell.auto)
    over_baseline = {cell.key: cell.auto / baseline[cell.key] for cell in cells if cell.key in baseline}
    return Summary(
        cells=len(cells),
        worst_over_plain=round(worst.auto, 4),
        worst_cell=worst.key,
        mean_speedup=round(statistics.geometric_mean(cell.auto for cell in cells), 4),
        share_of_fixed=_share([(cell.auto, cell.best_fixed) for cell in cells]),
        share_of_possible=_share([(cell.auto, cell.possible) for cell in cells]),
        slower_than_plain={c.key: round(c.auto, 4) for c in cells if c.auto < LEAST_OVER_PLAIN},
        slower_than_baseline={k: round(v, 4) for k, v in over_baseline.items() if v < LEAST_OVER_BASELINE},
        mean_over_baseline=round(statistics.geometric_mean(over_baseline.values()), 4) if over_baseline else None,
    )


def _share(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Gains together over gains that could be had together; a loss counts against them. None where there are none."""
    worth = [(auto - 1, best - 1) for auto, best in pairs if best >= _LEAST_POSSIBLE]
    return round(sum(a for a, _ in worth) / sum(b for _, b in worth), 4) if worth else None


def read_baseline(form: str, path: Path = BASELINE) -> dict[str, float]:
    """`form`: `full` or `quick`. Empty where none was stored."""
    if not path.exists():
        return {}
    stored: dict[str, dict[str, float]] = json.loads(path.read_text())
    return stored.get(form, {})


def write_baseline(form: str, cells: Sequence[Cell], path: Path = BASELINE) -> None:
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored[form] = {cell.key: round(cell.auto, 4) for cell in cells}
    path.write_text(json.dumps(stored, indent=0, sort_keys=True) + "\n")
