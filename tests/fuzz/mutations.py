"""Mutations: small deliberate bugs, applied by patching, that the fuzz has to find.

Each is a bug that a change of the product could bring. They patch names of the product; where one is renamed, the
mutation fails with an AttributeError and has to follow.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from slipstream.core import sampling, verify
from slipstream.core.drafter_guard import DrafterGuard
from slipstream.core.engine import Engine
from slipstream.core.stream import Stream, Token
from slipstream.core.text import TextAssembler
from slipstream.core.tree import ROOT
from slipstream.errors import SlipstreamError


@dataclass(frozen=True)
class Mutation:
    """`patches` lists what is patched while the bug is in. `backend` is where it shows."""

    name: str
    patches: Callable[[], Sequence[Any]]
    backend: str = "fake"
    scenarios: tuple[str, ...] = ("turns",)

    @contextmanager
    def apply(self) -> Iterator[None]:
        with ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            yield


def _every(nth: int) -> Callable[[], bool]:
    """True at every nth call."""
    calls = itertools.count(1)
    return lambda: next(calls) % nth == 0


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> Any:
    """Patches `owner.name` with a function that gets the original first."""
    original = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **kwargs: wrapper(original, *args, **kwargs))


def _matching(wrapper: Callable[..., Any]) -> Any:
    """Patches the matching verifier."""
    original = verify.VERIFIERS["matching"]
    changed = dataclasses.replace(original, verify=lambda *args: wrapper(original.verify, *args))
    return mock.patch.dict(verify.VERIFIERS, {"matching": changed})


# -- the verifier -------------------------------------------------------------------------------------------------


def _wrong_token_accepted() -> Sequence[Any]:
    due = _every(10)

    def verify_one(original: Any, tree: Any, scores: Any, choice: Any) -> Any:
        verdict = original(tree, scores, choice)
        wrong = tree.children(verdict.path[-1] if verdict.path else ROOT)
        if wrong and due():
            return dataclasses.replace(verdict, path=(*verdict.path, wrong[0]))
        return verdict

    return [_matching(verify_one)]


def _noise_one_late() -> Sequence[Any]:
    """The noise of tokens that follow a drafted one is that of the position after."""
    start = [0]

    def verify_one(original: Any, tree: Any, scores: Any, choice: Any) -> Any:
        start[0] = choice.position
        return original(tree, scores, choice)

    def sample(original: Any, row: Any, settings: Any, position: int, *rest: Any) -> Any:
        return original(row, settings, position + (position > start[0]), *rest)

    return [_matching(verify_one), _wrap(verify, "sample", sample)]


def _path_not_penalised() -> Sequence[Any]:
    return [
        _wrap(verify, "processed", lambda original, row, settings, history, path: original(row, settings, history, ()))
    ]


def _history_misses_tokens() -> Sequence[Any]:
    due = _every(4)
    return [_wrap(sampling.History, "extend", lambda original, self, tokens: None if due() else original(self, tokens))]


def _top_k_one_more() -> Sequence[Any]:
    def candidates(original: Any, row: Any, settings: Any) -> Any:
        more = dataclasses.replace(settings, top_k=settings.top_k + 1) if settings.top_k else settings
        return original(row, more)

    return [_wrap(sampling, "candidates", candidates)]


def _negative_rows_by_bits() -> Sequence[Any]:
    """Floats compared as integers where all of them are negative: the smallest wins."""
    return [mock.patch.object(sampling, "likeliest", lambda row: int(row.view("int32").argmax()))]


# -- the stream ---------------------------------------------------------------------------------------------------


def _stop_one_late() -> Sequence[Any]:
    def push(original: Any, self: Any, token: int) -> str:
        if self.__dict__.pop("is_late", False):
            self.stopped = True
            return ""
        text = original(self, token)
        self.is_late, self.stopped = self.stopped, False
        return str(text)

    return [_wrap(TextAssembler, "push", push)]


def _end_token_missed() -> Sequence[Any]:
    """A drafted end token does not end the answer."""

    def receive(original: Any, self: Any, token: int, drafted: bool, end_tokens: frozenset[int]) -> None:
        original(self, token, drafted, frozenset() if drafted else end_tokens)

    return [_wrap(Stream, "receive", receive)]


def _marker_token() -> Sequence[Any]:
    """A cancelled stream hands out a last token that is none."""

    def finish(original: Any, self: Any, reason: str, *rest: Any) -> None:
        if reason == "cancelled" and not self.done:
            self.outbox.append(Token(-1, "", False))
        original(self, reason, *rest)

    return [_wrap(Stream, "finish", finish)]


def _place_lost_on_cancel() -> Sequence[Any]:
    def finish(original: Any, self: Any, reason: str, *rest: Any) -> None:
        if reason == "cancelled":
            self.sequence = None
        original(self, reason, *rest)

    return [_wrap(Stream, "finish", finish)]


# -- the engine ---------------------------------------------------------------------------------------------------


def _refusal_ends_another() -> Sequence[Any]:
    """A request that is refused ends the stream that was submitted before it."""

    def generate(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            generation = original(self, *args, **kwargs)
        except SlipstreamError:
            if (last := self.__dict__.get("last_stream")) is not None:
                self.cancel(last)
            raise
        self.last_stream = generation.stream
        return generation

    return [_wrap(Engine, "generate", generate)]


def _drafter_not_ended() -> Sequence[Any]:
    due = _every(3)
    return [_wrap(DrafterGuard, "end", lambda original, self, stream: None if due() else original(self, stream))]


def _all_drafters_dropped() -> Sequence[Any]:
    """A stream with a broken drafter takes away the drafters of later streams."""

    def begin(original: Any, self: Any, stream: Any) -> None:
        if str(getattr(stream.drafter, "name", "")).startswith("broken"):
            self.has_failed = True
        elif self.__dict__.get("has_failed"):
            stream.drafter = None
        original(self, stream)

    return [_wrap(DrafterGuard, "begin", begin)]


# -- the torch backend's cache ------------------------------------------------------------------------------------


def _one_node_too_many() -> Sequence[Any]:
    from slipstream.backends.torch.kv_pool import PooledSequence

    def commit(original: Any, self: Any, path: Sequence[int] = ()) -> None:
        draft = self._scored[1] if self._scored else ()
        original(self, path)
        if len(path) < len(draft):
            self.tokens.append(draft[len(path)])

    return [_wrap(PooledSequence, "commit", commit)]


def _branch_not_moved() -> Sequence[Any]:
    """The keys of an accepted side branch stay where they were."""
    from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool

    def move(original: Any, self: Any, source: list[int], target: list[int]) -> None:
        if len(source) == PAGE_SIZE:
            original(self, source, target)

    return [_wrap(KVPool, "move", move)]


def _page_lost() -> Sequence[Any]:
    from slipstream.backends.torch.kv_pool import KVPool

    due = _every(40)
    return [_wrap(KVPool, "drop_page", lambda original, self, page: None if due() else original(self, page))]


def _shared_page_written() -> Sequence[Any]:
    from slipstream.backends.torch.kv_pool import KVPool

    return [_wrap(KVPool, "own_page", lambda original, self, page: page)]


def _reuse_one_too_many() -> Sequence[Any]:
    from slipstream.backends.torch import kv_pool

    def common_prefix_length(original: Any, a: Any, b: Any) -> int:
        return min(original(a, b) + 1, len(a), len(b))

    return [_wrap(kv_pool, "common_prefix_length", common_prefix_length)]


def _scores_swapped() -> Sequence[Any]:
    from slipstream.backends.torch.model import TorchModel

    due = _every(10)

    def score(original: Any, self: Any, requests: Sequence[Any]) -> Any:
        scores = original(self, requests)
        if len(scores) > 1 and len(requests[0].tree) == len(requests[1].tree) and due():
            scores[:2] = scores[1::-1]
        return scores

    return [_wrap(TorchModel, "score", score)]


MUTATIONS = {
    mutation.name: mutation
    for mutation in (
        Mutation("the verifier accepts a wrong token once in 10", _wrong_token_accepted),
        Mutation("noise of the next position after a drafted token", _noise_one_late),
        Mutation("penalties ignore the drafted path", _path_not_penalised),
        Mutation("penalties miss every fourth token", _history_misses_tokens),
        Mutation("top-k keeps one token more", _top_k_one_more),
        Mutation("greedy choice by the bits of negative logits", _negative_rows_by_bits),
        Mutation("a stop string is found one token late", _stop_one_late),
        Mutation("a drafted end token does not end the answer", _end_token_missed),
        Mutation("a cancelled stream hands out token -1", _marker_token),
        Mutation("a cancelled stream keeps its place in the cache", _place_lost_on_cancel),
        Mutation("a refused request ends another stream", _refusal_ends_another),
        Mutation("a drafter is not told of a stream's end", _drafter_not_ended),
        Mutation("a broken drafter takes the others with it", _all_drafters_dropped),
        Mutation("commit keeps one node too many", _one_node_too_many, "torch"),
        Mutation("an accepted side branch is not moved", _branch_not_moved, "torch"),
        Mutation("a page is not returned", _page_lost, "torch"),
        Mutation("a shared page is written to", _shared_page_written, "torch"),
        Mutation("prompt reuse takes one token too many", _reuse_one_too_many, "torch"),
        Mutation("two streams' scores are swapped", _scores_swapped, "torch"),
    )
}
