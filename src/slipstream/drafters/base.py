"""What drafters that keep nothing for a stream need not write again."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.stream import Observation, Stream


class FreeDrafter:
    """A drafter whose proposals cost next to nothing. Subclasses propose; the rest may stay as it is."""

    is_free = True

    def begin(self, stream: Stream) -> None:
        pass

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def end(self, stream: Stream) -> None:
        pass
