"""A drafter, a model and a tokenizer that report each call to a hook, so that a case can meddle in mid-round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from slipstream.core.engine import EngineTokenizer
from slipstream.core.protocols import KVSequence, Model, ScoreRequest, Scores
from slipstream.core.stream import Drafter, Observation, Stream
from slipstream.core.text import TokenDecoder
from slipstream.core.tree import DraftTree

Hook = Callable[[str], None]  # is told where the round is


def no_hook(point: str) -> None:
    pass


class WatchedDrafter:
    """Passes everything on, and counts it by stream."""

    def __init__(self, inner: Drafter, hook: Hook = no_hook) -> None:
        self.inner = inner
        self._hook = hook
        self.name, self.is_free = inner.name, inner.is_free
        self.begun: Counter[int] = Counter()
        self.proposed: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()

    def begin(self, stream: Stream) -> None:
        self.begun[stream.id] += 1
        self._hook("before begin")
        self.inner.begin(stream)
        self._hook("after begin")

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        self.proposed.update(stream.id for stream in streams)
        self._hook("before propose")
        trees = self.inner.propose(streams, budgets)
        self._hook("after propose")
        return trees

    def observe(self, observations: Sequence[Observation]) -> None:
        self._hook("before observe")
        self.inner.observe(observations)
        self._hook("after observe")

    def end(self, stream: Stream) -> None:
        self.ended[stream.id] += 1
        self.inner.end(stream)
        self._hook("after end")


class WatchedModel:
    """A target that reports to the hook when it opens a sequence and around each forward."""

    def __init__(self, inner: Model, hook: Hook) -> None:
        self._inner = inner
        self._hook = hook

    def open(self, tokens: Sequence[int] = (), reserve: int = 0) -> KVSequence:
        sequence = self._inner.open(tokens, reserve)
        self._hook("after open")
        return sequence

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        self._hook("before score")
        scores = self._inner.score(requests)
        self._hook("after score")
        return scores

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _WatchedDecoder:
    def __init__(self, inner: TokenDecoder, hook: Hook) -> None:
        self._inner, self._hook = inner, hook

    def push(self, token: int) -> str:
        self._hook("before decode")
        return self._inner.push(token)

    def flush(self) -> str:
        return self._inner.flush()


class WatchedTokenizer:
    """A tokenizer whose decoders report to the hook before each token."""

    def __init__(self, inner: EngineTokenizer, hook: Hook) -> None:
        self._inner, self._hook = inner, hook

    def stream_decoder(self) -> TokenDecoder:
        return _WatchedDecoder(self._inner.stream_decoder(), self._hook)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
