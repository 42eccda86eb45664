"""EarlyDraftTimes: rounds with one drafter's drafts that a device makes and scores without the host.

Such a round takes a forward pass and a draft, less the host's work that it hides. What it takes beyond that estimate is
kept separately, because it can't be attributed to either part. To start a series of such rounds takes the host some
time, once.
"""

from __future__ import annotations

from slipstream.policy.constants import MEMORY, RECENT
from slipstream.policy.round_times import size_of


class EarlyDraftTimes:
    def __init__(self) -> None:
        self._extra_s: dict[int, float] = {}  # what rounds take beyond their parts, by streams; below 0: less
        self.start_s = 0.0  # what the first of them takes beyond those that follow

    def extra_s(self, num_streams: int, rounds_since: int) -> float:
        """What such rounds take beyond their parts. It counts less, the longer there was none."""
        return self._extra_s.get(size_of(num_streams), 0.0) * MEMORY**rounds_since

    def has_seen(self, num_streams: int) -> bool:
        """Whether the device started rounds of so many streams early."""
        return size_of(num_streams) in self._extra_s

    def record(self, num_streams: int, seconds: float, parts_s: float) -> None:
        """Records a round that the device started early."""
        size, extra_s = size_of(num_streams), seconds - parts_s
        self._extra_s[size] = RECENT * self._extra_s.get(size, extra_s) + (1 - RECENT) * extra_s

    def record_first(self, num_streams: int, seconds: float, parts_s: float) -> None:
        """Records a round that the host started."""
        start_s = max(0.0, seconds - parts_s - self.extra_s(num_streams, 0))
        self.start_s = RECENT * (self.start_s or start_s) + (1 - RECENT) * start_s
