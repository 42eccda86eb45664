"""TextAssembler: turns token ids into text, and finds stop strings across token boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TokenDecoder(Protocol):
    """Turns ids into text as they arrive, and holds back incomplete characters."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


class TextAssembler:
    """Releases text as soon as it can't be part of a stop string."""

    def __init__(self, decoder: TokenDecoder, stops: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Text that can be released now. Sets `stopped` when a stop string is complete; nothing after it is
        released.
        """
        if not self._stops:
            return self._decoder.push(token)
        self._held += self._decoder.push(token)
        ends = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            self.stopped = True
            released, self._held = self._held[: min(ends)], ""
            return released
        keep = self._overlap()
        released, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return released

    def flush(self) -> str:
        """The text held back, at the end of the stream. Empty after a stop string."""
        if self.stopped:
            return ""
        released, self._held = self._held + self._decoder.flush(), ""
        return released

    def _overlap(self) -> int:
        """Length of the longest suffix of the held text that is a prefix of a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return longest
