"""RepeatedTimes: rounds with one drafter's drafts that a device starts by itself.

Such a round takes as long as its parts, less what it hides of the host's work: a forward pass, and a draft. The parts
can't be told apart from the host, so what a round takes beyond them changes neither: it is kept as a share of all of
them. To begin with such rounds takes the host some time, once.
"""

from __future__ import annotations

from slipstream.policy.constants import MEMORY, RECENT
from slipstream.policy.round_times import size_of


class RepeatedTimes:
    def __init__(self) -> None:
        self._shares: dict[int, float] = {}  # of what the parts take, by streams
        self._begin_s = 0.0

    def share(self, num_streams: int, rounds_since: int) -> float:
        """What such rounds take, over what their parts take. The longer there was none, the nearer to 1."""
        return 1.0 + (self._shares.get(size_of(num_streams), 1.0) - 1.0) * MEMORY**rounds_since

    @property
    def begin_s(self) -> float:
        """What the first of them takes beyond those that follow."""
        return self._begin_s

    def has_seen(self, num_streams: int) -> bool:
        """Whether the device started rounds of so many streams by itself."""
        return size_of(num_streams) in self._shares

    def record(self, num_streams: int, seconds: float, parts_s: float) -> None:
        """Records a round that the device started by itself."""
        size, share = size_of(num_streams), seconds / max(parts_s, 1e-12)
        self._shares[size] = RECENT * self._shares.get(size, share) + (1 - RECENT) * share

    def record_first(self, num_streams: int, seconds: float, parts_s: float) -> None:
        """Records a round that the host started."""
        beyond_s = max(0.0, seconds - parts_s * self.share(num_streams, 0))
        self._begin_s = RECENT * (self._begin_s or beyond_s) + (1 - RECENT) * beyond_s
