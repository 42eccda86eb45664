"""Offers: the proposals of all drafters for the streams of a round, and which of their nodes are worth scoring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slipstream.core.stream import Drafter, Observation, Stream
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree, TreeBuilder
from slipstream.policy.acceptance import Chance
from slipstream.policy.knowledge import Knowledge


class Offers:
    def __init__(self, streams: Sequence[Stream], rooms: Sequence[int]) -> None:
        """`rooms`: tokens that may be scored for each stream."""
        self._streams = streams
        self._rooms = rooms
        self._index = {stream.id: i for i, stream in enumerate(streams)}
        self._trees: list[dict[str, DraftTree]] = [{} for _ in streams]  # by drafter
        self._weighed: dict[tuple[int, str], list[Chance]] = {}  # by stream and drafter
        self._merged: list[DraftTree] = []  # the trees of all drafters merged, if they may be cut
        self._nodes: list[tuple[int, int]] = []  # stream and node of all of them
        self._chances: list[Chance] = []  # of each
        self._recovery: list[float] = []  # by stream: the chance that a draft goes on rightly after a wrong one
        self._selected: dict[int, list[int]] = {}  # by stream: places in `_nodes`
        self.was_asked = False  # any drafter: if not, there is nothing to choose from or to learn

    def add(self, stream: Stream, drafter: Drafter, tree: DraftTree) -> None:
        self.was_asked = True
        self._trees[self._index[stream.id]][drafter.name] = tree
        self._weighed.pop((stream.id, drafter.name), None)

    def __bool__(self) -> bool:
        """Whether there is a node that may be scored or dropped."""
        return bool(self._nodes)

    def of_stream(self, stream: Stream) -> dict[str, DraftTree]:
        """Proposals by drafter. Empty for a stream that read its prompt."""
        return self._trees[self._index[stream.id]] if stream.id in self._index else {}

    def of_drafter(self, name: str) -> list[DraftTree] | None:
        """One drafter's proposal for every stream, if it alone proposed something for all of them."""
        trees = [of_stream.get(name, EMPTY_TREE) for of_stream in self._trees]
        is_alone = all(sum(map(bool, of_stream.values())) == 1 for of_stream in self._trees)
        return trees if is_alone and all(trees) else None

    def whole(self, i: int) -> DraftTree:
        """The draft of a stream that must not be cut."""
        if self._streams[i].verifier.judges_unscored:
            return EMPTY_TREE
        return next(filter(None, self._trees[i].values()), EMPTY_TREE)

    def whole_gain(self, i: int, tree: DraftTree, known: Knowledge) -> float:
        """Expected tokens of such a draft, or of its beginning."""
        name = next(name for name, of_drafter in self._trees[i].items() if of_drafter)
        chances = known.drafters[name].acceptance.of_tree(tree, known.streams[self._streams[i].id].recent)
        return sum(chance.p for chance in chances)

    def weigh(self, known: Knowledge) -> None:
        """Computes the probabilities of all nodes that may be cut."""
        self._merged, self._nodes, self._chances, self._recovery = [], [], [], []
        for i, (stream, trees) in enumerate(zip(self._streams, self._trees, strict=True)):
            offered = {name: tree for name, tree in trees.items() if tree} if stream.verifier.judges_unscored else {}
            chances = {name: self._chances_of(stream, name, tree, known) for name, tree in offered.items()}
            if len(offered) > 1:
                tree, merged = _likeliest(*_merge(offered, chances), self._rooms[i])
            else:
                tree, merged = next(iter(offered.values()), EMPTY_TREE), next(iter(chances.values()), [])
            self._merged.append(tree)
            self._recovery.append(self._recovery_of(offered, known))
            self._nodes += [(i, node) for node in range(len(tree))]
            self._chances += merged

    def _chances_of(self, stream: Stream, drafter: str, tree: DraftTree, known: Knowledge) -> list[Chance]:
        key = (stream.id, drafter)
        if key not in self._weighed:
            recent = known.streams[stream.id].recent
            self._weighed[key] = known.drafters[drafter].acceptance.of_tree(tree, recent)
        return self._weighed[key]

    def _recovery_of(self, offered: Iterable[str], known: Knowledge) -> float:
        """One stream alone is not waited for: its next draft is right or wrong, and the wait is then lost whole. Over
        many streams the mean is what comes."""
        if len(self._streams) == 1:
            return 0.0
        return max((known.drafters[name].recovery for name in offered), default=0.0)

    def ranked(self, z: float, limit: int) -> tuple[list[int], list[float]]:
        """Places of the `limit` likeliest nodes, most likely first, and their probabilities at the quantile `z`.
        Parents come before children.
        """
        order = sorted(range(len(self._chances)), key=self._chances.__getitem__, reverse=True)[:limit]  # stable
        if not z:
            return order, [self._chances[place].p for place in order]
        values: dict[int, float] = {}
        for place in order:
            values[place] = self._bounded(place, z, values)
        order.sort(key=values.__getitem__, reverse=True)
        return order, [values[place] for place in order]

    def _bounded(self, place: int, z: float, values: Mapping[int, float]) -> float:
        """The quantile of a node: no node's is higher than its parent's, which is in `values`."""
        i, node = self._nodes[place]
        parent = self._merged[i].parents[node]
        above = 1.0 if parent == ROOT else values.get(place - node + parent, 1.0)
        return min(above, self._chances[place].quantile(z))

    def expected_next(self, z: float, limit: int) -> list[float]:
        """The `limit` highest chances of tokens that the round after this one could score, if this one gives the first
        token of each draft alone. What is now in second place is then in first; and where the first token is wrong,
        the drafter may offer something else that is right.
        """
        values: dict[int, float] = {}
        expected: list[float] = []
        for place, (i, node) in enumerate(self._nodes):
            tree = self._merged[i]
            values[place] = self._bounded(place, z, values)
            depth = tree.depths()[node]
            if depth == 2:
                wrong = 1 - values[place - node + tree.parents[node]]
                expected.append(values[place] + wrong * self._recovery[i])
            elif depth > 2:
                expected.append(values[place])
        return sorted(expected, reverse=True)[:limit]

    # -- the selection ----------------------------------------------------------------------------------------------

    def select(self, places: Sequence[int]) -> None:
        self._selected = {}
        for place in places:
            self._selected.setdefault(self._nodes[place][0], []).append(place)

    def selected(self, i: int) -> DraftTree:
        places = self._selected.get(i, ())
        return self._merged[i].keep(self._nodes[place][1] for place in places) if places else EMPTY_TREE

    def gains(self) -> dict[int, tuple[int, float]]:
        """By stream: the selected nodes, and their expected tokens."""
        return {i: (len(of), sum(self._chances[place].p for place in of)) for i, of in self._selected.items()}

    # -- the result -------------------------------------------------------------------------------------------------

    def depth_of(self, drafter: str) -> int:
        """The depth of the longest draft that a drafter proposed."""
        return max((max(trees[drafter].depths(), default=0) for trees in self._trees if drafter in trees), default=0)

    def credit_of(self, drafter: str, observations: Sequence[Observation]) -> tuple[int, int]:
        """The scored and the accepted nodes among those that this drafter proposed."""
        num_scored = num_accepted = 0
        for o in observations:
            trees = self.of_stream(o.stream)
            if len(trees) == 1 and drafter in trees:
                num_scored += len(o.scored)
                num_accepted += len(o.verdict.path)
            elif drafter in trees and o.scored:
                place = _places(o.scored, trees[drafter])
                num_scored += sum(at is not None for at in place.values()) - 1
                num_accepted += sum(place[node] is not None for node in o.verdict.path)
        return num_scored, num_accepted


def _merge(trees: dict[str, DraftTree], chances: dict[str, list[Chance]]) -> tuple[DraftTree, list[Chance]]:
    """Merges several trees; each node has the highest probability of any drafter."""
    builder = TreeBuilder()
    best: list[Chance] = []
    for name, tree in trees.items():
        place = {ROOT: ROOT}
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            at = place[node] = builder.add(place[parent], token)
            if at == len(best):
                best.append(chances[name][node])
            best[at] = max(best[at], chances[name][node])
    return builder.build(), best


def _likeliest(tree: DraftTree, chances: list[Chance], count: int) -> tuple[DraftTree, list[Chance]]:
    """As much of a tree as there is room for: each drafter kept to it, but not all of them together."""
    if len(tree) <= count:
        return tree, chances
    kept = sorted(sorted(range(len(tree)), key=chances.__getitem__, reverse=True)[:count])  # stable, also in reverse
    return tree.keep(kept), [chances[node] for node in kept]


def _places(inner: DraftTree, outer: DraftTree) -> dict[int, int | None]:
    """The places of the nodes of one tree in another, if they are in it."""
    place: dict[int, int | None] = {ROOT: ROOT}
    for node, (token, parent) in enumerate(zip(inner.tokens, inner.parents, strict=True)):
        above = place[parent]
        place[node] = None if above is None else outer.child(above, token)
    return place
