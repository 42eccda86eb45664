"""LiveStats: what the server does now and did in the last minutes, for its page."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from slipstream.core.policy import PolicyReport
from slipstream.core.stats import Stats
from slipstream.server.scheduler import Scheduler

_EVERY_S = 1.0
_KEPT = 300  # samples: five minutes
_NOW_S = 3.0  # what "now" means for tokens per second


@dataclass(frozen=True, slots=True)
class LiveSample:
    """One second."""

    time: float  # Unix time
    tokens_per_second: float
    draft_length: float  # drafted tokens per stream and round
    mean_accepted_length: float
    plain_tokens_per_second: float | None  # estimated for the streams of that second
    active: int
    queued: int


@dataclass(frozen=True, slots=True)
class _Totals:
    at: float
    tokens: int
    rounds: int
    drafted: int

    @classmethod
    def of(cls, stats: Stats) -> _Totals:
        return cls(time.monotonic(), stats.num_tokens, stats.rounds, stats.num_drafted)


class LiveStats:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._samples: deque[LiveSample] = deque(maxlen=_KEPT)
        self._totals: deque[_Totals] = deque([_Totals.of(scheduler.engine.stats)], maxlen=_KEPT)

    def tick(self) -> None:
        """Adds a sample if a second has passed. Called often."""
        last, now = self._totals[-1], _Totals.of(self._scheduler.engine.stats)
        seconds, rounds = now.at - last.at, now.rounds - last.rounds
        if seconds < _EVERY_S:
            return
        self._totals.append(now)
        self._samples.append(
            LiveSample(
                round(time.time(), 1),
                round((now.tokens - last.tokens) / seconds, 2),
                round((now.drafted - last.drafted) / rounds, 3) if rounds else 0.0,
                round((now.tokens - last.tokens) / rounds, 3) if rounds else 0.0,
                plain_tokens_per_second(self._scheduler.report, max(self._scheduler.num_active, 1)),
                self._scheduler.num_active,
                self._scheduler.num_queued,
            )
        )

    def tokens_per_second(self) -> float:
        """Over the last seconds."""
        now = _Totals.of(self._scheduler.engine.stats)
        since = next((t for t in reversed(self._totals) if now.at - t.at >= _NOW_S), self._totals[0])
        return (now.tokens - since.tokens) / max(now.at - since.at, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        self.tick()
        stats, report = self._scheduler.engine.stats, self._scheduler.report
        deepest = max(list(stats.drafted_at), default=0)
        depths = range(1, deepest + 1)
        active = self._scheduler.num_active
        return {
            "tokens_per_second": round(self.tokens_per_second(), 2),
            "plain_tokens_per_second": plain_tokens_per_second(report, max(active, 1)),
            "speedup_estimate": report.observed_speedup or report.predicted_speedup,
            "accepted_by_position": [stats.accepted_at[d] for d in depths],
            "drafted_by_position": [stats.drafted_at[d] for d in depths],
            "acceptance_by_position": [round(stats.accepted_at[d] / stats.drafted_at[d], 4) for d in depths],
            "drafted": stats.num_drafted,
            "accepted": stats.num_accepted,
            "rounds": stats.rounds,
            "tokens": stats.num_tokens,
            "mean_accepted_length": round(stats.mean_accepted_length, 3),
            "draft_length": round(report.budget, 3),
            "policy": report.reason,
            "streams": {
                "active": active,
                "queued": self._scheduler.num_queued,
                "max_active": self._scheduler.max_streams,
            },
            "history": [asdict(sample) for sample in self._samples],
        }


def plain_tokens_per_second(report: PolicyReport, num_streams: int) -> float | None:
    """The estimated speed of plain decoding with this many streams, from the measured cost of rounds."""
    cost = report.cost_by_rows_s
    rows = min((rows for rows in cost if rows >= num_streams), default=None)
    if rows is None or cost[rows] <= 0:
        return None
    return round(num_streams / cost[rows], 2)
