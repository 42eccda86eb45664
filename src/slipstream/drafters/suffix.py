"""`suffix`: a suffix tree over this stream and earlier ones, with counts as confidence of a continuation."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.core.stream import Stream
from slipstream.core.tree import ROOT, DraftTree, TreeBuilder
from slipstream.drafters.base import FreeDrafter
from slipstream.errors import UsageError

# A match of n tokens is followed by the same token in n / (n + doubt) of cases: 0.3, 0.55, 0.67 … 0.85 were measured
# for 1, 2, 3 … 10 tokens, in answers of two models to prompts of fourteen kinds.
_DOUBT = 1.7


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    depth: int = 12  # tokens of context and continuation together
    width: int = 1  # continuations per branch; 1 drafts a chain
    max_nodes: int = 400_000  # size limit of the tree, about 60 MB; beyond it the oldest streams are removed

    def __post_init__(self) -> None:
        if self.depth < 2 or self.width < 1 or self.max_nodes < 1:
            raise UsageError(f"{self}: expected depth 2 or more, width and max_nodes 1 or more")


@dataclass(slots=True)
class _Node:
    count: int = 0
    children: dict[int, _Node] = field(default_factory=dict)


class SuffixTree:
    """Counts every run of at most `depth` tokens. Streams are added as they grow and removed whole.

    A place in the tree is a list of nodes: those of the last 1, 2, 3 … tokens, for as long as such a run is known.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._root = _Node()
        self.num_nodes = 0

    def add(self, place: list[_Node], token: int) -> list[_Node]:
        """Adds the runs that end with `token` after `place`; returns the new place."""
        reached = []
        for node in (self._root, *place[: self._depth - 1]):
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node()
                self.num_nodes += 1
            child.count += 1
            reached.append(child)
        return reached

    def after(self, place: list[_Node], token: int) -> list[_Node]:
        """The place behind `token`, as far as its runs are known: of a run that is, all its ends are."""
        reached = []
        for node in (self._root, *place[: self._depth - 1]):
            child = node.children.get(token)
            if child is None:
                break
            reached.append(child)
        return reached

    def continuations(self, place: list[_Node], width: int) -> tuple[int, list[tuple[int, float]]]:
        """The longest run that ends here and has a known continuation: its length, and the most likely next tokens with
        their shares.
        """
        for length in range(min(len(place), self._depth - 1), 0, -1):
            children = place[length - 1].children
            if len(children) == 1:
                return length, [(token, 1.0) for token in children]
            if children:
                total = sum(child.count for child in children.values())
                ranked = heapq.nlargest(width, children.items(), key=lambda item: item[1].count)
                return length, [(token, child.count / total) for token, child in ranked]
        return 0, []

    def remove(self, tokens: Sequence[int]) -> None:
        """Removes one stream."""
        for begin in range(len(tokens)):
            node = self._root
            for token in tokens[begin : begin + self._depth]:
                child = node.children[token]
                child.count -= 1
                if child.count == 0:
                    self.num_nodes -= _size(child)
                    del node.children[token]
                    break
                node = child


def _size(node: _Node) -> int:
    return 1 + sum(_size(child) for child in node.children.values())


@dataclass(slots=True)
class _TreeReader:
    """A running stream, and how much of it is in its tree."""

    tree: SuffixTree
    num_tokens: int = 0
    place: list[_Node] = field(default_factory=list)


_Candidate = tuple[float, int, int, float, list[_Node]]  # -chance, parent, token, confidence, the place before it


class SuffixDrafter(FreeDrafter):
    name = "suffix"

    def __init__(self, options: SuffixOptions | None = None) -> None:
        self._options = options or SuffixOptions()
        self._tree = SuffixTree(self._options.depth)
        self._readers: dict[int, _TreeReader] = {}
        self._finished: deque[list[int]] = deque()  # oldest first

    def begin(self, stream: Stream) -> None:
        """A stream that keeps to itself has a tree of its own."""
        tree = SuffixTree(self._options.depth) if stream.options.is_cold else self._tree
        self._readers[stream.id] = _TreeReader(tree)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        return [self._propose_one(self._read(s), budget) for s, budget in zip(streams, budgets, strict=True)]

    def _read(self, stream: Stream) -> _TreeReader:
        reader = self._readers[stream.id]
        for token in stream.tokens[reader.num_tokens :]:
            reader.place = reader.tree.add(reader.place, token)
        reader.num_tokens = len(stream.tokens)
        return reader

    def _propose_one(self, reader: _TreeReader, budget: int) -> DraftTree:
        """Best first: the next node is the one most likely to be reached."""
        builder = TreeBuilder()
        heap: list[_Candidate] = []
        parent, chance, place = ROOT, 1.0, reader.place
        while len(builder) < budget:
            length, ranked = reader.tree.continuations(place, self._options.width)
            trust = length / (length + _DOUBT)
            for token, share in ranked:
                confidence = trust * share * share  # a text that continued in two ways often continues in a third
                heapq.heappush(heap, (-chance * confidence, parent, token, confidence, place))
            if not heap:
                break
            minus_chance, parent, token, confidence, before = heapq.heappop(heap)
            parent, chance = builder.add(parent, token, confidence), -minus_chance
            place = reader.tree.after(before, token)
        return builder.build()

    def end(self, stream: Stream) -> None:
        """Keeps the stream for later ones, unless it is cold, and removes the oldest when the tree is full."""
        if stream.id not in self._readers:
            return
        if not stream.options.is_cold:
            self._read(stream)
            self._finished.append(list(stream.tokens))
        del self._readers[stream.id]
        while self._tree.num_nodes > self._options.max_nodes and self._finished:
            self._tree.remove(self._finished.popleft())
