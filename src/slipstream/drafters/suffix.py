"""`suffix`: proposes what followed the longest earlier matches of the last tokens, in this stream and in earlier ones.
The confidence shows how often it did.
"""

from __future__ import annotations

import heapq
from array import array
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.core.stream import Stream
from slipstream.core.tree import ROOT, DraftTree, TreeBuilder
from slipstream.drafters.base import FreeDrafter
from slipstream.drafters.text_index import GAP, TextIndex
from slipstream.errors import UsageError

# A match of n tokens is followed by the same token in n / (n + doubt) of cases: 0.3, 0.55, 0.67 … 0.85 were measured
# for 1, 2, 3 … 10 tokens, in answers of two models to prompts of fourteen kinds.
_DOUBT = 1.7
_OLDER = 0.7  # the weight of a continuation relative to the next later one: the latest is right most often


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    depth: int = 12  # tokens of context and continuation together
    width: int = 1  # continuations per branch; 1 drafts a chain
    max_tokens: int = 400_000  # of earlier streams, about 50 MB; beyond it the oldest of them are removed

    def __post_init__(self) -> None:
        for name, least in (("depth", 2), ("width", 1), ("max_tokens", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"suffix({name}={getattr(self, name)}): expected {name} {least} or more")


class _Match(NamedTuple):
    """Earlier runs of tokens that match the end of a text and of the draft after it."""

    length: int
    places: list[tuple[array[int], int]]  # of the tokens that followed them
    context: list[int]  # the end of the text and the draft

    def continuations(self, width: int) -> list[tuple[int, float]]:
        """The next tokens with the most weight, and their shares of it."""
        if len(self.places) == 1:
            tokens, at = self.places[0]
            return [(tokens[at], 1.0)]
        weights, weight = defaultdict[int, float](float), 1.0
        for tokens, at in self.places:
            weights[tokens[at]] += weight
            weight *= _OLDER
        total = sum(weights.values())
        ranked = heapq.nlargest(width, weights.items(), key=lambda item: item[1])
        return [(token, of_token / total) for token, of_token in ranked]


_Candidate = tuple[float, int, int, float, _Match]  # -chance, parent, token, confidence, the match before it


class SuffixDrafter(FreeDrafter):
    name = "suffix"

    def __init__(self, options: SuffixOptions | None = None) -> None:
        self._options = options or SuffixOptions()
        self._longest = self._options.depth - 1
        self._running: dict[int, TextIndex] = {}  # by stream
        self._earlier = TextIndex(self._longest)
        self._lengths: deque[int] = deque()  # of earlier streams, oldest first

    def begin(self, stream: Stream) -> None:
        self._running[stream.id] = TextIndex(self._longest)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        return [self._propose_one(s, budget) for s, budget in zip(streams, budgets, strict=True)]

    def _propose_one(self, stream: Stream, budget: int) -> DraftTree:
        """Best first: the next node is the one most likely to be reached."""
        own = self._running[stream.id]
        own.add(stream.tokens[own.length :])
        indexes = (own,) if stream.options.is_cold else (own, self._earlier)
        builder = TreeBuilder()
        heap: list[_Candidate] = []
        parent, chance, match = ROOT, 1.0, _search(indexes, stream.tokens[-self._longest :])
        while len(builder) < budget:
            trust = match.length / (match.length + _DOUBT)
            for token, share in match.continuations(self._options.width):
                confidence = trust * share
                heapq.heappush(heap, (-chance * confidence, parent, token, confidence, match))
            if not heap:
                break
            minus_chance, parent, token, confidence, before = heapq.heappop(heap)
            parent, chance = builder.add(parent, token, confidence), -minus_chance
            match = self._after(indexes, before, token)
        return builder.build()

    def _after(self, indexes: Sequence[TextIndex], match: _Match, token: int) -> _Match:
        """The match with one token more. If nothing has followed that yet, searches for other runs."""
        context = [*match.context, token][-self._longest :]
        places = [
            (tokens, at + 1)
            for tokens, at in match.places
            if tokens[at] == token and at + 1 < len(tokens) and tokens[at + 1] != GAP
        ]
        if not places:
            return _search(indexes, context)
        return _Match(min(match.length + 1, self._longest), places, context)

    def end(self, stream: Stream) -> None:
        """Keeps the stream for later ones, unless it is cold, and removes the oldest where there are too many."""
        if self._running.pop(stream.id, None) is None or stream.options.is_cold:
            return
        self._earlier.add_text(stream.tokens)
        self._lengths.append(len(stream.tokens))
        while self._lengths and len(self._earlier.tokens) > self._options.max_tokens:
            self._earlier.remove_first(self._lengths.popleft())


def _search(indexes: Sequence[TextIndex], context: list[int]) -> _Match:
    """The longest runs in any of them."""
    length = 0
    places: list[tuple[array[int], int]] = []
    for index in indexes:
        reached, found = index.places_after(context)
        if reached > length:
            length, places = reached, []
        if reached == length:
            places += [(index.tokens, place) for place in found]
    return _Match(length, places, context)
