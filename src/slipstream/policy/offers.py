"""Offers: the proposals of all drafters for the streams of a round, and which of their nodes are worth scoring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slipstream.core.stream import Drafter, Observation, Stream
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree, TreeBuilder
from slipstream.policy.acceptance import TreeChances
from slipstream.policy.knowledge import Knowledge
from slipstream.policy.objective import RoundOption


class Choice(NamedTuple):
    """Offered nodes to score, and the round in which they are scored."""

    round: RoundOption
    places: list[int]


class StreamGain(NamedTuple):
    """Chosen nodes of a stream, and how many of them are expected to be accepted."""

    nodes: int
    tokens: float


class Offers:
    """All nodes that may be cut are numbered through, stream after stream: such a number is a *place*.

    `add` what was proposed, `weigh` it, choose some of the `ranked` places; `trees` makes drafts of them.
    """

    def __init__(self, streams: Sequence[Stream], rooms: Sequence[int]) -> None:
        """`rooms`: tokens that may be scored for each stream."""
        self._streams = streams
        self._rooms = rooms
        self._index = {stream.id: i for i, stream in enumerate(streams)}
        self._trees: list[dict[str, DraftTree]] = [{} for _ in streams]  # by drafter
        self._weighed: list[dict[str, TreeChances]] = [{} for _ in streams]  # by drafter
        self._merged: list[DraftTree] = []  # the trees of all drafters merged, if they may be cut
        self._starts: list[int] = []  # by stream: the place of its first node among all of them
        self._stream_of: list[int] = []  # by place
        self._chances = TreeChances([], [])  # by place
        self._recovery: list[float] = []  # by stream: the chance that a draft is right after a wrong one
        self.was_asked = False  # whether any drafter was: if not, there is nothing to choose or learn

    def add(self, stream: Stream, drafter: Drafter, tree: DraftTree) -> None:
        self.was_asked = True
        i = self._index[stream.id]
        self._trees[i][drafter.name] = tree
        self._weighed[i].pop(drafter.name, None)

    def __bool__(self) -> bool:
        """Whether there is a node that may be scored or dropped."""
        return bool(self._stream_of)

    def of_stream(self, stream: Stream) -> dict[str, DraftTree]:
        """Proposals by drafter. Empty for a stream that read its prompt."""
        i = self._index.get(stream.id)
        return {} if i is None else self._trees[i]

    def of_drafter(self, name: str) -> list[DraftTree] | None:
        """One drafter's proposal for every stream, if it alone proposed something for all of them."""
        trees = [of_stream.get(name, EMPTY_TREE) for of_stream in self._trees]
        is_alone = all(sum(map(bool, of_stream.values())) == 1 for of_stream in self._trees)
        return trees if is_alone and all(trees) else None

    def uncuttable(self) -> list[DraftTree]:
        """By stream: its draft, if that must not be cut, else an empty one."""
        return [
            EMPTY_TREE if stream.verifier.judges_unscored else next(filter(None, trees.values()), EMPTY_TREE)
            for stream, trees in zip(self._streams, self._trees, strict=True)
        ]

    def uncuttable_gain(self, i: int, tree: DraftTree, known: Knowledge) -> float:
        """Expected tokens of such a draft, or of its beginning."""
        name = next(name for name, of_drafter in self._trees[i].items() if of_drafter)
        recent = known.streams[self._streams[i].id].recent
        return sum(known.drafters[name].acceptance.of_trees([tree], [recent])[0].p)

    def weigh(self, known: Knowledge) -> None:
        """Computes the probabilities of all nodes that may be cut."""
        offered = [
            [name for name, tree in trees.items() if tree.tokens] if stream.verifier.judges_unscored else []
            for stream, trees in zip(self._streams, self._trees, strict=True)
        ]
        self._weigh_new(offered, known)
        self._merged, self._starts, self._stream_of = [], [], []
        self._recovery = self._recoveries(offered, known)
        self._chances = all_chances = TreeChances([], [])
        for i, names in enumerate(offered):
            self._starts.append(len(self._stream_of))
            if not names:
                self._merged.append(EMPTY_TREE)
                continue
            tree, chances = self._trees[i][names[0]], self._weighed[i][names[0]]
            if len(names) > 1:
                merged = _merge({name: self._trees[i][name] for name in names}, self._weighed[i])
                tree, chances = _likeliest(*merged, self._rooms[i])
            self._merged.append(tree)
            self._stream_of += [i] * len(tree.tokens)
            all_chances.p.extend(chances.p)
            all_chances.cautious.extend(chances.cautious)

    def _weigh_new(self, offered: Sequence[Sequence[str]], known: Knowledge) -> None:
        """Weighs what was proposed since the last call."""
        new: dict[str, list[int]] = {}
        for i, names in enumerate(offered):
            for name in names:
                if name not in self._weighed[i]:
                    new.setdefault(name, []).append(i)
        for name, of_streams in new.items():
            trees = [self._trees[i][name] for i in of_streams]
            recent = [known.streams[self._streams[i].id].recent for i in of_streams]
            chances = known.drafters[name].acceptance.of_trees(trees, recent)
            for i, of_tree in zip(of_streams, chances, strict=True):
                self._weighed[i][name] = of_tree

    def _recoveries(self, offered: Sequence[Sequence[str]], known: Knowledge) -> list[float]:
        """0 for one stream alone: its next draft is right or wrong, and if it is wrong, the whole wait is lost. Over
        many streams, the mean is what to expect."""
        if len(offered) == 1:
            return [0.0]
        return [max([known.drafters[name].recovery for name in names]) if names else 0.0 for names in offered]

    def ranked(self, limit: int, *, cautiously: bool) -> tuple[list[int], list[float]]:
        """Places of the `limit` likeliest nodes, most likely first, and their probabilities. Parents come before
        children.
        """
        values = self._chances.p
        order = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:limit]  # stable, also in reverse
        if cautiously:
            values = self._chances.cautious
            order.sort(key=values.__getitem__, reverse=True)
        return order, [values[place] for place in order]

    def expected_next(self, limit: int) -> list[float]:
        """The `limit` highest cautious chances of tokens that the round after this one could score, if this one gives
        the first token of each draft alone. What is now in second place is then in first; and where the first token is
        wrong, the drafter may offer something else that is right.
        """
        values, expected = self._chances.cautious, list[float]()
        for tree, start, recovery in zip(self._merged, self._starts, self._recovery, strict=True):
            own = values[start : start + len(tree.tokens)]
            expected += [
                chance + (1 - own[parent]) * recovery if depth == 2 else chance
                for chance, depth, parent in zip(own, tree.depths(), tree.parents, strict=True)
                if depth > 1
            ]
        return sorted(expected, reverse=True)[:limit]

    # -- chosen places ----------------------------------------------------------------------------------------------

    def trees(self, places: Sequence[int]) -> list[DraftTree]:
        """By stream: the tree of its nodes at these places."""
        of_streams = zip(self._merged, self._starts, self._by_stream(places), strict=True)
        return [t.keep([at - start for at in own]) if len(own) < len(t.tokens) else t for t, start, own in of_streams]

    def gains(self, places: Sequence[int]) -> dict[int, StreamGain]:
        """What the nodes at these places give each stream that has some."""
        p, by_stream = self._chances.p, self._by_stream(places)
        return {i: StreamGain(len(own), sum([p[place] for place in own])) for i, own in enumerate(by_stream) if own}

    def _by_stream(self, places: Sequence[int]) -> list[list[int]]:
        by_stream: list[list[int]] = [[] for _ in self._streams]
        for place in places:
            by_stream[self._stream_of[place]].append(place)
        return by_stream

    # -- the result -------------------------------------------------------------------------------------------------

    def depth_of(self, drafter: str) -> int:
        """The depth of the longest draft that a drafter proposed."""
        drafts = [trees[drafter].depths() for trees in self._trees if drafter in trees]
        return max([max(depths) for depths in drafts if depths], default=0)

    def credit_of(self, drafter: str, observations: Sequence[Observation]) -> tuple[int, int]:
        """The scored and the accepted nodes that this drafter alone proposed: what would be missing without it."""
        num_scored = num_accepted = 0
        for o in observations:
            trees = self.of_stream(o.stream)
            if len(trees) == 1 and drafter in trees:
                num_scored += len(o.scored.tokens)
                num_accepted += len(o.verdict.path)
            elif drafter in trees and o.scored:
                nodes = {name: _nodes_in(tree, o.scored) for name, tree in trees.items()}
                alone = nodes.pop(drafter).difference(*nodes.values())
                num_scored += len(alone)
                num_accepted += len(alone.intersection(o.verdict.path))
        return num_scored, num_accepted


def _merge(trees: Mapping[str, DraftTree], chances: Mapping[str, TreeChances]) -> tuple[DraftTree, TreeChances]:
    """Merges several trees; each node has the highest probabilities of any drafter."""
    builder = TreeBuilder()
    best: list[tuple[float, float]] = []
    for name, tree in trees.items():
        place = {ROOT: ROOT}
        of_nodes = zip(tree.tokens, tree.parents, *chances[name], strict=True)
        for node, (token, parent, *chance) in enumerate(of_nodes):
            at = place[node] = builder.add(place[parent], token)
            if at == len(best):
                best.append((0.0, 0.0))
            best[at] = max(best[at][0], chance[0]), max(best[at][1], chance[1])
    return builder.build(), TreeChances([p for p, _ in best], [cautious for _, cautious in best])


def _likeliest(tree: DraftTree, chances: TreeChances, count: int) -> tuple[DraftTree, TreeChances]:
    """The `count` likeliest nodes: each drafter kept to the room of the stream, but not all of them together."""
    if len(tree) <= count:
        return tree, chances
    kept = sorted(sorted(range(len(tree)), key=chances.p.__getitem__, reverse=True)[:count])  # stable, also in reverse
    return tree.keep(kept), TreeChances([chances.p[i] for i in kept], [chances.cautious[i] for i in kept])


def _nodes_in(outer: DraftTree, inner: DraftTree) -> set[int]:
    """The nodes of `inner` that `outer` has too."""
    place: dict[int, int] = {ROOT: ROOT}
    for node, (token, parent) in enumerate(zip(inner.tokens, inner.parents, strict=True)):
        if parent in place and (at := outer.child(place[parent], token)) is not None:
            place[node] = at
    return place.keys() - {ROOT}
