"""Generation: an answer on its way, as the caller sees it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Protocol

from slipstream.core.stats import Stats
from slipstream.core.stream import FinishReason, Stream, Token


class Driver(Protocol):
    """What advances and ends streams: the engine."""

    def step(self) -> bool: ...

    def cancel(self, stream: Stream) -> None: ...


class Generation:
    """An answer on its way. Iterate it for tokens. Leaving the loop early cancels it, and so does dropping it.

    Whoever asks for a token drives the rounds, for all streams of the engine: no thread is needed, and with several
    threads the others find their tokens waiting.
    """

    def __init__(self, engine: Driver, stream: Stream) -> None:
        self._engine = engine
        self.stream = stream
        self._text: list[str] = []
        weakref.finalize(self, engine.cancel, stream).atexit = False

    def __iter__(self) -> Iterator[Token]:
        try:
            while (token := self._next()) is not None:
                self._text.append(token.text)
                yield token
        finally:
            self.cancel()

    def _next(self) -> Token | None:
        while True:
            over = self.stream.done  # asked before the outbox: another thread may be adding the last token right now
            if self.stream.outbox:
                return self.stream.outbox.popleft()
            if not over:
                self._engine.step()
            elif self.stream.error:
                raise self.stream.error
            else:
                return None

    def cancel(self) -> None:
        """Ends the answer: at once, or when the running round ends. Never waits; harmless when it is over."""
        self._engine.cancel(self.stream)

    def result(self) -> Generation:
        """Runs to the end."""
        for _ in self:
            pass
        return self

    @property
    def text(self) -> str:
        """What was read of the answer so far."""
        return "".join(self._text)

    @property
    def tokens(self) -> list[int]:
        return self.stream.answer

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.stream.finish_reason

    @property
    def stats(self) -> Stats:
        return self.stream.stats
