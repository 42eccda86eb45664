"""Consumer: reads one answer the way callers do, and notes what it saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slipstream.core.engine import Engine
from slipstream.core.generation import Generation
from slipstream.core.stream import Token

# How a consumer leaves before the end. `abandon` keeps the Generation and never reads on.
LEAVING = ("cancel", "close", "drop", "drop in a cycle", "raise", "abandon", "cancel before reading", "drop unread")


class ConsumerError(Exception):
    """What a consumer's own code raises in the middle of an answer."""


class Consumer:
    """Reads token by token. `leave` is one of LEAVING or None, and happens after `leave_after` tokens.

    After the end: `ids` and `text` are what was read, `tokens` what the Generation says the answer is, `refusal` what
    `generate` raised and `error` what reading raised. `was_cancelled`: somebody asked for the end, so the answer may be
    a part of the expected one. `has_read_all`: the Generation itself said that there is no more.
    """

    def __init__(self, submit: Callable[[Engine], Generation], leave: str | None = None, leave_after: int = 0) -> None:
        self._submit = submit
        self._leave, self._leave_after = leave, leave_after
        self._generation: Generation | None = None
        self._iterator: Iterator[Token] | None = None
        self.ids: list[int] = []
        self.text = ""
        self.tokens: list[int] | None = None
        self.reason: str | None = None
        self.refusal: Exception | None = None
        self.error: Exception | None = None
        self.was_cancelled = False
        self.is_over = False
        self.has_read_all = False

    def start(self, engine: Engine) -> None:
        """Submits the request."""
        try:
            self._generation = self._submit(engine)
        except Exception as refusal:
            self.refusal, self.is_over = refusal, True
            return
        if self._leave in ("cancel before reading", "drop unread"):
            self.leave()
        if self._generation is not None:
            self._iterator = iter(self._generation)

    def advance(self) -> bool:
        """Reads one token. False when there is nothing more to read."""
        if self.is_over or self._iterator is None:
            return False
        try:
            token = next(self._iterator, None)
        except Exception as error:
            self.error = error
            return self._end()
        if token is None:
            return self._end()
        self.ids.append(token.id)
        self.text += token.text
        if self._leave and not self.was_cancelled and len(self.ids) >= self._leave_after:
            self.leave()
        return not self.is_over

    def run(self) -> None:
        """Reads to the end, or until it leaves."""
        while self.advance():
            pass

    def leave(self) -> None:
        """Leaves in its own way. After `cancel` it reads on: the end has to come."""
        self.was_cancelled = True
        if self._leave in ("cancel", "cancel before reading"):
            self.cancel()
        elif self._leave == "abandon":
            self.is_over = True
        elif self._leave == "close" and self._iterator is not None:
            self._note()
            self._iterator.close()  # type: ignore[attr-defined]
            self.drop()
        elif self._leave == "raise" and self._iterator is not None:
            self._throw()
        else:
            self.drop(in_cycle=self._leave == "drop in a cycle")

    def cancel(self) -> None:
        """Cancels from outside: from another thread, a signal handler or a finaliser."""
        generation = self._generation
        if generation is not None:
            self.was_cancelled = True
            generation.cancel()

    def drop(self, in_cycle: bool = False) -> None:
        """Gives up all references. The garbage collector has to find them where they are `in_cycle`."""
        if self._generation is None:
            return
        self._note()
        self.was_cancelled = self.is_over = True
        if in_cycle:
            cycle: list[object] = [self._generation, self._iterator]
            cycle.append(cycle)
        self._generation = self._iterator = None

    def _throw(self) -> None:
        assert self._iterator is not None
        self._note()
        try:
            self._iterator.throw(ConsumerError("the consumer failed"))  # type: ignore[attr-defined]
        except ConsumerError:
            pass
        except Exception as error:
            self.error = error
        self.drop()

    def _note(self) -> None:
        if self._generation is not None:
            self.tokens, self.reason = list(self._generation.tokens), self._generation.finish_reason

    def _end(self) -> bool:
        self._note()
        self.has_read_all = self.error is None and self._generation is not None
        self.is_over = True
        self._generation = self._iterator = None
        return False
