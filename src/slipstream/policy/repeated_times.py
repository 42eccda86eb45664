"""RepeatedTimes: rounds with one drafter's drafts that a device starts by itself.

Such a round takes as long as a forward pass and a draft, less what it hides of the host's work. What it takes beyond
these parts is kept for itself: it can't be told whose it is. To begin with such rounds takes the host some time, once.
"""

from __future__ import annotations

from slipstream.policy.constants import MEMORY, RECENT
from slipstream.policy.round_times import size_of


class RepeatedTimes:
    def __init__(self) -> None:
        self._beyond_s: dict[int, float] = {}  # what rounds take beyond their parts, by streams; below 0: less
        self.begin_s = 0.0  # what the first of them takes beyond those that follow

    def beyond(self, num_streams: int, rounds_since: int) -> float:
        """What such rounds take beyond their parts. The longer there was none, the less is said of it."""
        return self._beyond_s.get(size_of(num_streams), 0.0) * MEMORY**rounds_since

    def has_seen(self, num_streams: int) -> bool:
        """Whether the device started rounds of so many streams by itself."""
        return size_of(num_streams) in self._beyond_s

    def record(self, num_streams: int, seconds: float, parts_s: float) -> None:
        """Records a round that the device started by itself."""
        size, beyond_s = size_of(num_streams), seconds - parts_s
        self._beyond_s[size] = RECENT * self._beyond_s.get(size, beyond_s) + (1 - RECENT) * beyond_s

    def record_first(self, num_streams: int, seconds: float, parts_s: float) -> None:
        """Records a round that the host started."""
        begin_s = max(0.0, seconds - parts_s - self.beyond(num_streams, 0))
        self.begin_s = RECENT * (self.begin_s or begin_s) + (1 - RECENT) * begin_s
