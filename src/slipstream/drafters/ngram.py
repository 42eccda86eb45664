"""`ngram`: prompt lookup. Finds the last tokens earlier in the text, longest match first, and proposes what
followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.stream import Stream
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.drafters.base import FreeDrafter
from slipstream.drafters.text_index import TextIndex
from slipstream.errors import UsageError


@dataclass(frozen=True, slots=True)
class NgramOptions:
    min_n: int = 1  # the shortest match that counts
    max_n: int = 5  # the longest match to look for

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.max_n:
            raise UsageError(f"min_n {self.min_n}, max_n {self.max_n}: expected 1 <= min_n <= max_n")


class NgramDrafter(FreeDrafter):
    name = "ngram"

    def __init__(self, options: NgramOptions | None = None) -> None:
        self._options = options or NgramOptions()
        self._indexes: dict[int, TextIndex] = {}

    def begin(self, stream: Stream) -> None:
        self._indexes[stream.id] = TextIndex(self._options.max_n)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        return [self._propose_one(stream, budget) for stream, budget in zip(streams, budgets, strict=True)]

    def _propose_one(self, stream: Stream, budget: int) -> DraftTree:
        index = self._indexes[stream.id]
        index.add(stream.tokens[index.length :])
        length, places = index.places_after(stream.tokens[-self._options.max_n :])
        if length < self._options.min_n or not places:
            return EMPTY_TREE
        draft = index.tokens[places[0] : places[0] + budget].tolist()
        period = len(index.tokens) - places[0]
        while len(draft) < budget:  # the match overlaps the end: the text repeats, so the draft keeps repeating it
            draft.append(draft[len(draft) - period])
        confidence = min(0.15 + 0.15 * length, 0.95)
        return DraftTree.chain(draft, [confidence] * budget)

    def end(self, stream: Stream) -> None:
        self._indexes.pop(stream.id, None)
