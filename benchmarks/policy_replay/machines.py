"""Machines: what forwards, drafts and the host's work cost on each, from `machines.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from slipstream.loading import FIRST_SIZES, MEASURING_S

FILE = Path(__file__).parents[1] / "machines.json"
MAX_ROWS = 512
_MOST_ROWS = 2048  # with those that a draft model has to catch up on
_LOADING_REPEATS = 3


class Curve:
    """Seconds of a forward by rows: straight lines between measured sizes, the last slope beyond them.

    With `buckets` a forward costs what the next larger one does.
    """

    def __init__(self, ms_by_rows: dict[int, float], buckets: tuple[int, ...] = ()) -> None:
        self._seconds = [0.0, *(_line(ms_by_rows, _padded(rows, buckets)) / 1e3 for rows in range(1, _MOST_ROWS + 1))]

    def __call__(self, rows: int) -> float:
        """0 for no rows."""
        return self._seconds[rows]


def _padded(rows: int, buckets: tuple[int, ...]) -> int:
    return next((bucket for bucket in buckets if rows <= bucket), rows)


def _line(ms_by_rows: dict[int, float], rows: int) -> float:
    sizes = sorted(ms_by_rows)
    above = next((i for i, size in enumerate(sizes) if size >= rows), len(sizes) - 1)
    if above == 0:
        return ms_by_rows[sizes[0]]
    low, high = sizes[above - 1], sizes[above]
    slope = (ms_by_rows[high] - ms_by_rows[low]) / (high - low)
    return ms_by_rows[low] + slope * (rows - low)


@dataclass(frozen=True, slots=True)
class DraftCost:
    """A draft model's forwards by rows, and what asking it costs the host beside them."""

    forward_s: Curve
    call_s: float
    stops_early: bool = False  # where it is not sure enough


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of everything that a round consists of."""

    name: str
    recording: str
    runs_ahead: bool  # a plain round that the one before announced is started on before it is asked for
    forward_s: Curve  # waited for: `launch_s` included
    launch_s: float
    host_s: float  # a round besides the forward, with one stream
    host_s_per_stream: float  # for each stream more
    free_draft_s: float  # a free drafter's proposal, with one stream
    free_draft_s_per_stream: float
    drafts: dict[str, DraftCost]  # by drafter
    teams: tuple[str, ...] = ()  # drafters together: chained:suffix,head
    decoding_rows: int | None = None  # of a decoding step at most

    def host(self, num_streams: int) -> float:
        return self.host_s + self.host_s_per_stream * (num_streams - 1)

    def free_draft(self, num_streams: int) -> float:
        return self.free_draft_s + self.free_draft_s_per_stream * (num_streams - 1) if num_streams else 0.0

    def measured_at_load(self, forward_s: Curve) -> dict[int, float]:
        """What `LoadedModel.row_costs` would find in the time that it takes."""
        seconds: dict[int, float] = {}
        spent_s = 0.0
        for _ in range(_LOADING_REPEATS):
            for rows in FIRST_SIZES[self.runs_ahead]:
                seconds[rows] = forward_s(rows)
                spent_s += forward_s(rows)
                if spent_s > MEASURING_S:
                    return seconds
        return seconds


@cache
def machines() -> dict[str, Machine]:
    return {name: _machine(name, data) for name, data in json.loads(FILE.read_text()).items()}


def _machine(name: str, data: dict[str, Any]) -> Machine:
    buckets = tuple(data.get("buckets", ()))
    return Machine(
        name=name,
        recording=data["recording"],
        runs_ahead=data.get("runs_ahead", False),
        forward_s=_curve(data["forward_ms"], buckets),
        launch_s=data.get("launch_ms", 0.0) / 1e3,
        host_s=data["host_ms"] / 1e3,
        host_s_per_stream=data["host_ms_per_stream"] / 1e3,
        free_draft_s=data["free_draft_ms"] / 1e3,
        free_draft_s_per_stream=data["free_draft_ms_per_stream"] / 1e3,
        drafts={
            drafter: DraftCost(
                _curve(draft["forward_ms"], buckets), draft.get("call_ms", 0.0) / 1e3, draft.get("stops_early", False)
            )
            for drafter, draft in data["drafts"].items()
        },
        teams=tuple(data.get("teams", ())),
        decoding_rows=max(buckets, default=None),
    )


def _curve(ms_by_rows: dict[str, float], buckets: tuple[int, ...]) -> Curve:
    return Curve({int(rows): ms for rows, ms in ms_by_rows.items()}, buckets)
