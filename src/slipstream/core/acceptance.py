"""AcceptanceModel: how likely a drafted token is taken, learned per stream and drafter.

Each node falls in a cell by its depth and the drafter's own confidence. A stream's cell leans on the drafter's cell
over all streams, that one on the cell of the same confidence one less deep, and the first on the confidence itself,
corrected by how far the drafter's confidence could be trusted so far. So a new stream starts from what is known, and a
drafter that boasts is found out after a few tokens. What the other streams say is corrected by how this one differs
from them lately, at any depth and confidence: a text that has begun to copy goes on doing so.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from slipstream.core.tree import ROOT, DraftTree

_DECAY = 0.97  # an old observation fades: about 30 recent ones count
_OWN_PRIOR = 1.5  # how many observations the drafter-wide estimate weighs against a stream's own
_PRIOR = 20.0  # and how many the depth above, or the corrected confidence, weighs against the drafter-wide estimate
_TRUST_PRIOR = 8.0  # how many certain tokens, all taken, a new drafter is taken to have behind it
_DEPTH_PRIOR = 2.0
_STREAM_DECAY = 0.9  # of what a stream took lately: about 10 tokens count
_STREAM_PRIOR = 1.0
_LEAST_FACTOR, _MOST_FACTOR = 0.7, 1.5  # by which a stream differs from the others
_SURE = 0.97  # what such a factor makes certain at most
_BUCKETS = 6

Cell = tuple[int, int]


@dataclass(slots=True)
class _Counts:
    tried: float = 0.0
    taken: float = 0.0

    def add(self, taken: bool, weight: float = 1.0, decay: float = _DECAY) -> None:
        """`weight`: how much of a token was promised."""
        self.tried = self.tried * decay + weight
        self.taken = self.taken * decay + taken

    def fade(self) -> None:
        self.tried *= _DECAY
        self.taken *= _DECAY

    def mean(self, prior: float, weight: float) -> float:
        return (self.taken + prior * weight) / (self.tried + weight)


def _cell(depth: int, confidence: float) -> Cell:
    return min(depth, 4), min(int(confidence * _BUCKETS), _BUCKETS - 1)


class AcceptanceModel:
    def __init__(self) -> None:
        self._by_drafter: dict[tuple[str, Cell], _Counts] = defaultdict(_Counts)
        self._by_stream: dict[int, dict[Cell, _Counts]] = defaultdict(lambda: defaultdict(_Counts))
        self._trust: dict[str, _Counts] = defaultdict(_Counts)  # claimed confidence, and what was taken
        self._lately: dict[int, _Counts] = defaultdict(_Counts)  # the same by stream, of its last tokens
        self._by_depth: dict[str, dict[int, _Counts]] = defaultdict(lambda: defaultdict(_Counts))

    def forget(self, stream_id: int) -> None:
        self._by_stream.pop(stream_id, None)
        self._lately.pop(stream_id, None)

    def _factor(self, stream_id: int) -> float:
        """Tokens taken over tokens promised, of this stream lately."""
        counts = self._lately[stream_id]
        factor = (counts.taken + _STREAM_PRIOR) / (counts.tried + _STREAM_PRIOR)
        return max(_LEAST_FACTOR, min(_MOST_FACTOR, factor))

    def _trust_in(self, drafter: str) -> float:
        """Tokens taken over tokens promised: below 1 the drafter boasts."""
        counts = self._trust[drafter]
        return min((counts.taken + _TRUST_PRIOR) / (counts.tried + _TRUST_PRIOR), 1.0)

    def node_chances(self, stream_id: int, drafter: str, tree: DraftTree) -> list[float]:
        """That each node ends up accepted: the product along its path."""
        trust, factor = self._trust_in(drafter), self._factor(stream_id)
        chances: list[float] = []
        for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths(), strict=True)):
            confidence = tree.confidence[node] if tree.confidence else 0.5
            cell = _cell(depth, confidence)
            everywhere = self._everywhere(drafter, cell, confidence * trust)
            expected = min(everywhere * factor, max(everywhere, _SURE))
            own = self._by_stream[stream_id][cell].mean(expected, _OWN_PRIOR)
            chances.append(own if parent == ROOT else own * chances[parent])
        return chances

    def _everywhere(self, drafter: str, cell: Cell, prior: float) -> float:
        """That a node is taken given that its parent was, over all streams."""
        deepest, bucket = cell
        for depth in range(1, deepest + 1):
            prior = self._by_drafter[drafter, (depth, bucket)].mean(prior, _PRIOR)
        return prior

    def depth_chances(self, drafter: str, depth: int) -> list[float]:
        """That a draft is accepted to depth 1, 2 … `depth`, whatever its confidence."""
        chances, product, known = [], 1.0, 0.7
        for d in range(1, depth + 1):
            known = self._by_depth[drafter][d].mean(known, _DEPTH_PRIOR)
            product *= known
            chances.append(product)
        return chances

    def observe_nothing(self, drafter: str) -> None:
        """It was asked and had no idea: as good as a first token that was not taken."""
        self._by_depth[drafter][1].add(False)

    def observe(self, stream_id: int, drafter: str, proposed: DraftTree, tokens: list[int]) -> None:
        """Learns from the tokens the stream gained, also about nodes that were proposed and never scored.

        What was not seen this time fades: bad luck far down must not end all tries there.
        """
        seen = self._learn(stream_id, drafter, proposed, tokens)
        for depth, counts in self._by_depth[drafter].items():
            if depth > seen:
                counts.fade()

    def _learn(self, stream_id: int, drafter: str, proposed: DraftTree, tokens: list[int]) -> int:
        """Returns the deepest that something was learned of."""
        node, depth = ROOT, 0
        for depth, token in enumerate(tokens, start=1):
            children = proposed.children(node)
            if not children:
                return depth - 1
            for child in children:
                taken = proposed.tokens[child] == token
                confidence = proposed.confidence[child] if proposed.confidence else 0.5
                cell = _cell(depth, confidence)
                self._trust[drafter].add(taken, confidence)
                self._lately[stream_id].add(taken, confidence, _STREAM_DECAY)
                self._by_drafter[drafter, cell].add(taken)
                self._by_stream[stream_id][cell].add(taken)
            match = proposed.child(node, token)
            self._by_depth[drafter][depth].add(match is not None)
            if match is None:
                return depth
            node = match
        return depth
