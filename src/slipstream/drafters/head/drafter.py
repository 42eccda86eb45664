"""HeadDrafter: grows a tree by the probability of each path; a step reads the likeliest nodes of a depth at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.core.protocols import DraftNodes, ExtendRequest, Extension, HeadModel, KVSequence, Logits
from slipstream.core.stream import Observation, Stream
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree, TreeBuilder
from slipstream.drafters.base import Guess
from slipstream.drafters.head.choices import HeadChoices
from slipstream.errors import UsageError


@dataclass(frozen=True, slots=True)
class HeadOptions:
    width: int = 1  # nodes that a step reads, and tokens that each of them may be followed by; 1 drafts a chain

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 8:
            raise UsageError(f"head(width={self.width}): expected 1 to 8")


@dataclass(slots=True, eq=False)
class _Candidate:
    """A token that may be drafted. `read_as`: its number among the nodes that the head has read."""

    choice: Guess
    parent: _Candidate | None
    chance: float  # of the whole path
    depth: int
    read_as: int = ROOT

    def path_tokens(self) -> list[int]:
        before = self.parent.path_tokens() if self.parent else []
        return [*before, self.choice.token]


@dataclass(slots=True, eq=False)
class _GrowingTree:
    """A draft in progress."""

    stream: Stream
    sequence: KVSequence
    budget: int
    num_steps: int
    nodes: list[_Candidate] = field(default_factory=list)
    read_tokens: list[int] = field(default_factory=list)
    read_parents: list[int] = field(default_factory=list)
    extension: Extension | None = None  # the whole draft, if the head drafted by itself

    def next_read(self, width: int, depth: int) -> list[_Candidate]:
        """The likeliest nodes of this depth that are worth continuing, numbered; the head reads them next."""
        if depth >= self.num_steps:
            return []
        worthwhile = (n for n in self.nodes if n.depth == depth and n.chance >= self.stream.least_chance)
        found = sorted(worthwhile, key=lambda node: -node.chance)[:width]
        for node in found:
            node.read_as = len(self.read_tokens)
            self.read_tokens.append(node.choice.token)
            self.read_parents.append(node.parent.read_as if node.parent else ROOT)
        return found

    def tree(self) -> DraftTree:
        """The likeliest nodes within the budget. A node is never likelier than its parent, which comes before it."""
        if self.extension:
            return _likeliest(self.extension, self.budget)
        kept = sorted(range(len(self.nodes)), key=lambda i: -self.nodes[i].chance)[: self.budget]
        builder, place = TreeBuilder(), {id(None): ROOT}
        for node in (self.nodes[i] for i in sorted(kept)):
            choice = node.choice
            place[id(node)] = builder.add(place[id(node.parent)], choice.token, choice.confidence, choice.proposal)
        return builder.build()


class HeadDrafter:
    is_free = False

    def __init__(self, head: HeadModel, vocab_size: int, options: HeadOptions | None = None) -> None:
        """`vocab_size`: the target's."""
        self.name = "head"
        self.head = head
        self.width = (options or HeadOptions()).width
        self.stops_early = head.ends_early
        self.drafts_early = not head.ends_early and self.width == 1
        self._chooser = HeadChoices(head.token_ids, vocab_size)

    def begin(self, stream: Stream) -> None:
        assert stream.sequence is not None
        self.head.follow(stream.sequence)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        """One forward pass of the head for each depth, for all streams."""
        drafts = [_draft(stream, n, self._width_for(stream)) for stream, n in zip(streams, budgets, strict=True)]
        asked = [draft for draft in drafts if draft]
        alone = [draft for draft in asked if self._can_extend(draft.stream)]
        if alone:
            self._extend(alone)
        if len(alone) < len(asked):
            self._grow([draft for draft in asked if draft not in alone])
        return [draft.tree() if draft else EMPTY_TREE for draft in drafts]

    def _can_extend(self, stream: Stream) -> bool:
        """Whether the head can draft for it without the host."""
        return stream.is_coupled and self.head.extends(stream.sampling, self.width)

    def _extend(self, drafts: Sequence[_GrowingTree]) -> None:
        requests = [
            ExtendRequest(
                d.sequence,
                [d.stream.tokens[-1]],
                d.num_steps,
                d.stream.sampling,
                d.stream.num_answer_tokens,
                self.width,
                d.stream.least_chance,
            )
            for d in drafts
        ]
        for draft, extension in zip(drafts, self.head.extend(requests), strict=True):
            draft.extension = extension

    def _grow(self, asked: Sequence[_GrowingTree]) -> None:
        first = self.head.begin_draft([d.sequence for d in asked], [d.stream.tokens[-1] for d in asked])
        for draft, row in zip(asked, first, strict=True):
            self._add_children(draft, None, row)
        depth = 1
        while reads := [(draft, nodes) for draft in asked if (nodes := draft.next_read(self.width, depth))]:
            rows_of = self.head.read([_nodes(draft, nodes, depth) for draft, nodes in reads])
            for (draft, nodes), rows in zip(reads, rows_of, strict=True):
                for node, row in zip(nodes, rows, strict=True):
                    self._add_children(draft, node, row)
            depth += 1

    def _width_for(self, stream: Stream) -> int:
        """Independent samples are drafted as a chain."""
        return self.width if stream.is_coupled else 1

    def _add_children(self, draft: _GrowingTree, parent: _Candidate | None, row: Logits) -> None:
        stream, sampling = draft.stream, draft.stream.sampling
        depth = parent.depth if parent else 0
        path = parent.path_tokens() if parent and sampling.uses_history else []
        row = self._chooser.processed(row, sampling, stream.history, path)
        position, width = stream.num_answer_tokens + depth, self._width_for(stream)
        if stream.is_coupled:
            choices = self._chooser.likeliest(row, sampling, position, width)
        else:
            choices = self._chooser.drawn(row, sampling, position)
        before = parent.chance if parent else 1.0
        draft.nodes += [_Candidate(choice, parent, before * choice.confidence, depth + 1) for choice in choices]

    def observe(self, observations: Sequence[Observation]) -> None:
        pass  # the target's features show what was kept

    def end(self, stream: Stream) -> None:
        if stream.sequence is not None:
            self.head.leave(stream.sequence)


def _likeliest(extension: Extension, budget: int) -> DraftTree:
    """As `_GrowingTree.tree`. A chain is cut at the first token without finite logits."""
    if extension.parents is None:
        finite = next((i for i, token in enumerate(extension.tokens) if token < 0), budget)
        return DraftTree.chain(extension.tokens[: min(finite, budget)], extension.chances[: min(finite, budget)])
    paths: list[float] = []
    for chance, parent in zip(extension.chances, extension.parents, strict=True):
        paths.append(min(chance, 1.0) * (1.0 if parent == ROOT else paths[parent]))
    whole = DraftTree(tuple(extension.tokens), tuple(extension.parents), tuple(extension.chances))
    return whole.keep(sorted(range(len(paths)), key=paths.__getitem__, reverse=True)[:budget])


def _draft(stream: Stream, budget: int, width: int) -> _GrowingTree | None:
    """None where nothing can be drafted: no budget, or a prompt whose end the target has not read."""
    if not budget or stream.sequence is None or not stream.num_answer_tokens:
        return None
    return _GrowingTree(stream, stream.sequence, budget, -(-budget // width))


def _nodes(draft: _GrowingTree, nodes: Sequence[_Candidate], depth: int) -> DraftNodes:
    return DraftNodes(draft.sequence, [n.read_as for n in nodes], draft.read_tokens, draft.read_parents, depth)
