"""Generation: an answer on its way, as the caller sees it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from slipstream.core.stats import Stats
from slipstream.core.stream import FinishReason, Stream, Token

# Runs the rounds that `async for` asks for. One thread: rounds take turns anyway, and after each of them all waiting
# callers check whether their token has arrived.
_ROUNDS = ThreadPoolExecutor(1, "slipstream-rounds")
_SHOWN_CHARACTERS = 60  # of the text, in repr


class Driver(Protocol):
    """What advances and ends streams: the engine."""

    def step(self) -> bool: ...

    def cancel(self, stream: Stream) -> None: ...


class Generation:
    """An answer on its way. Iterate it for tokens, with `for` or `async for`. Leaving the loop early cancels it, and so
    does dropping it.

    Whoever asks for a token drives the rounds, for all streams of the engine: no thread is needed, and with several
    threads the others find their tokens waiting. `async for` leaves the rounds to a thread, so the event loop goes on;
    cancelling the task cancels the answer.
    """

    def __init__(self, engine: Driver, stream: Stream) -> None:
        self._engine = engine
        self.stream = stream
        self._text: list[str] = []
        weakref.finalize(self, engine.cancel, stream).atexit = False

    def __iter__(self) -> Iterator[Token]:
        try:
            while not self._is_over():
                if token := self._take():
                    yield token
                else:
                    self._engine.step()
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[Token]:
        try:
            while not self._is_over():
                if token := self._take():
                    yield token
                else:
                    await asyncio.get_running_loop().run_in_executor(_ROUNDS, self._advance)
        finally:
            self.cancel()

    def _is_over(self) -> bool:
        """Whether the whole answer was read. Raises the error that ended it early."""
        over = self.stream.done and not self.stream.outbox  # in this order: another thread may add the last token now
        if over and self.stream.error:
            raise self.stream.error
        return over

    def _take(self) -> Token | None:
        """The next token, if there is one now."""
        if not self.stream.outbox:
            return None
        token = self.stream.outbox.popleft()
        self._text.append(token.text)
        return token

    def _advance(self) -> None:
        """One round, unless another one has produced a token meanwhile."""
        if not self.stream.outbox and not self.stream.done:
            self._engine.step()

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
        """The text of the answer that was read so far."""
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

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "stats": self.stats.to_dict(),
        }

    def __str__(self) -> str:
        """The text that was read so far; the `repr` if there is none. Computes nothing."""
        return self.text if self._text else repr(self)

    def __repr__(self) -> str:
        text, num_tokens = self.text, self.stream.num_answer_tokens
        if len(text) > _SHOWN_CHARACTERS:
            text = f"{text[:_SHOWN_CHARACTERS]}…"
        state = self.finish_reason or ("running" if num_tokens else "not started")
        return f"<Generation {text!r}, {num_tokens} tokens, {state}>"
