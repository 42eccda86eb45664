"""Base class for drafters that keep no state per stream."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.stream import Observation, Stream


class FreeDrafter:
    """A drafter whose proposals cost almost no time. Subclasses implement `propose`; the other methods have
    defaults.
    """

    is_free = True

    def begin(self, stream: Stream) -> None:
        pass

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def end(self, stream: Stream) -> None:
        pass
