"""`ngram`: prompt lookup. Finds the last tokens earlier in the text, longest match first, and proposes what
followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.stream import Stream
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.drafters.base import FreeDrafter
from slipstream.errors import UsageError


@dataclass(frozen=True, slots=True)
class NgramOptions:
    min_n: int = 1  # the shortest match that counts
    max_n: int = 5  # the longest match to look for

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.max_n:
            raise UsageError(f"min_n {self.min_n}, max_n {self.max_n}: expected 1 <= min_n <= max_n")


class _Index:
    """Where each n-gram of a stream last ended, updated token by token."""

    def __init__(self, options: NgramOptions) -> None:
        self._sizes = range(options.max_n, options.min_n - 1, -1)
        self._followed_by: dict[tuple[int, ...], int] = {}  # n-gram -> position of the token after it
        self._indexed = 0

    def extend(self, tokens: list[int]) -> None:
        """Adds the n-grams that have a token after them, so a lookup never finds the end itself."""
        for end in range(max(self._indexed, 1), len(tokens)):
            for n in self._sizes:
                if n <= end:
                    self._followed_by[tuple(tokens[end - n : end])] = end
        self._indexed = len(tokens)

    def lookup(self, tokens: list[int]) -> tuple[int, int] | None:
        """(position after the match, length of the match)"""
        for n in self._sizes:
            if n < len(tokens) and (at := self._followed_by.get(tuple(tokens[-n:]))) is not None:
                return at, n
        return None


class NgramDrafter(FreeDrafter):
    name = "ngram"

    def __init__(self, options: NgramOptions | None = None) -> None:
        self._options = options or NgramOptions()
        self._indexes: dict[int, _Index] = {}

    def begin(self, stream: Stream) -> None:
        self._indexes[stream.id] = _Index(self._options)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        return [self._propose_one(stream, budget) for stream, budget in zip(streams, budgets, strict=True)]

    def _propose_one(self, stream: Stream, budget: int) -> DraftTree:
        index = self._indexes[stream.id]
        index.extend(stream.tokens)
        found = index.lookup(stream.tokens)
        if found is None:
            return EMPTY_TREE
        at, n = found
        draft = stream.tokens[at : at + budget]
        while len(draft) < budget:  # the match overlaps the end: the text repeats, so the draft keeps repeating it
            draft.append(draft[len(draft) - (len(stream.tokens) - at)])
        confidence = min(0.15 + 0.15 * n, 0.95)
        return DraftTree.chain(draft, [confidence] * budget)

    def end(self, stream: Stream) -> None:
        self._indexes.pop(stream.id, None)
