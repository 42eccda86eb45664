"""BrokenDrafter: a working drafter with one fault. The text must not depend on it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from slipstream.core.stream import Drafter, Observation, Stream
from slipstream.core.tree import EMPTY_TREE, DraftTree

_ERRORS = (RuntimeError, ValueError, KeyError, StopIteration, AssertionError, MemoryError, RecursionError)
_RAISING = {
    "raises in begin": {"begin"},
    "raises in propose": {"propose"},
    "raises in observe": {"observe"},
    "raises in end": {"end"},
    "raises sometimes": {"begin", "propose", "observe", "end"},
}


def _forged(**fields: object) -> Any:
    """A DraftTree that was never checked, as a drafter can make one with `object.__setattr__` or a subclass."""
    tree = object.__new__(DraftTree)
    whole = {"tokens": (), "parents": (), "confidence": (), "proposals": (), "_children": {}, "_depths": []} | fields
    for name, value in whole.items():
        object.__setattr__(tree, name, value)
    return tree


def _confident(value: object) -> Callable[[DraftTree], Any]:
    return lambda tree: DraftTree(tree.tokens, tree.parents, (value,) * len(tree))  # type: ignore[arg-type]


def _tokens(change: Callable[[int], object]) -> Callable[[DraftTree], Any]:
    return lambda tree: DraftTree.chain([change(t) for t in tree.tokens[:3]])  # type: ignore[misc]


def _long(tree: DraftTree) -> DraftTree:
    return DraftTree.chain([*tree.tokens[:1], *(i % 3 for i in range(700))])


_PER_TREE: dict[str, Callable[[DraftTree], Any]] = {
    "confidence nan": _confident(float("nan")),
    "confidence inf": _confident(float("inf")),
    "confidence None": _confident(None),
    "confidence out of range": _confident(7.5),
    "confidence negative": _confident(-2.0),
    "confidence text": _confident("high"),
    "confidence numpy": _confident(np.float32(0.5)),
    "float tokens": _tokens(float),
    "fractional tokens": _tokens(lambda t: t + 0.5),
    "numpy tokens": _tokens(np.int64),
    "small numpy tokens": _tokens(lambda t: np.uint8(t % 200)),
    "negative tokens": _tokens(lambda t: -1 - t),
    "tokens out of range": _tokens(lambda t: t + 100_000),
    "huge tokens": _tokens(lambda t: t + 2**70),
    "text tokens": _tokens(str),
    "None tokens": lambda tree: DraftTree.chain([None]),  # type: ignore[list-item]
    "over budget": _long,
    "None for a tree": lambda tree: None,
    "list for a tree": lambda tree: list(tree.tokens),
    "number for a tree": lambda tree: 5,
    "2-D array for a tree": lambda tree: np.zeros((2, 3)),
    "other object for a tree": lambda tree: SimpleNamespace(tokens=tree.tokens),
    "parents later than children": lambda tree: _forged(tokens=(1, 2), parents=(1, -1), _depths=[2, 1]),
    "fewer parents than tokens": lambda tree: _forged(tokens=(1, 2, 3), parents=(-1,), _depths=[1]),
    "bad proposals": lambda tree: DraftTree(
        tree.tokens, tree.parents, (), tuple(np.array([np.nan, 2.0]) for _ in tree.tokens)
    ),
}
_PER_LIST: dict[str, Callable[[list[Any]], Any]] = {
    "too few trees": lambda trees: trees[:-1],
    "too many trees": lambda trees: [*trees, *trees, EMPTY_TREE],
    "no list": lambda trees: None,
    "2-D array for the list": lambda trees: np.zeros((len(trees), 3)),
    "generator for the list": lambda trees: (tree for tree in trees),
    "tuple for the list": tuple,
    "dict for the list": lambda trees: dict(enumerate(trees)),
    "number for the list": lambda trees: 3,
}
FAULTS = (*_RAISING, *_PER_TREE, *_PER_LIST)


class BrokenDrafter:
    """Does `fault` at every call, or at random ones where the fault says so."""

    def __init__(self, inner: Drafter, fault: str, rng: random.Random) -> None:
        self._inner, self._fault = inner, fault
        self._rng = random.Random(rng.randrange(1 << 30))
        self._error = self._rng.choice(_ERRORS)
        self.name = f"broken ({fault})"
        self.is_free = inner.is_free
        self.begun: list[int] = []

    def begin(self, stream: Stream) -> None:
        self.begun.append(stream.id)
        self._fail("begin")
        self._inner.begin(stream)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        self._fail("propose")
        trees: Any = self._inner.propose(streams, budgets)
        if self._fault in _PER_TREE:
            return [_PER_TREE[self._fault](tree) for tree in trees]
        return _PER_LIST[self._fault](trees) if self._fault in _PER_LIST else trees

    def observe(self, observations: Sequence[Observation]) -> None:
        self._fail("observe")
        self._inner.observe(observations)

    def end(self, stream: Stream) -> None:
        """Gives back what the inner drafter holds before it fails: a leak would be the drafter's, not the engine's."""
        self._inner.end(stream)
        self._fail("end")

    def _fail(self, method: str) -> None:
        if method in _RAISING.get(self._fault, ()) and (self._fault != "raises sometimes" or self._rng.random() < 0.2):
            raise self._error(f"fault of the fuzz in {method}")
