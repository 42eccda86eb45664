"""Forward: how the rows of a score become calls of llama_decode.

`SharedForward` scores all rows in one call: branches of a tree are separate sequences that share the cells of their
common tokens. `ExactForward` gives a row the same bits regardless of the other rows: every stream has its own cache, a
tree is scored branch after branch, and a call has only as many rows as were measured to keep their bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from slipstream.backends.llamacpp.context import Logits, NoRoomError
from slipstream.backends.llamacpp.sequences import LlamaSequence, Scored, Sequences
from slipstream.core.prefix import common_prefix_length
from slipstream.core.tree import ROOT, DraftTree
from slipstream.errors import CapacityError, UnsupportedModelError


@dataclass(slots=True)
class StreamRows:
    """One stream's rows: its tokens that are not in the cache, then `pending` and the tree."""

    sequence: LlamaSequence
    pending: tuple[int, ...]
    tree: DraftTree


class Forward(Protocol):
    def run(self, parts: Sequence[StreamRows]) -> list[Logits]:
        """[nodes + 1, vocab] for each part, valid until the next call. Raises CapacityError if there are no free
        cells.
        """
        ...


class SharedForward:
    def __init__(self, sequences: Sequences) -> None:
        self._sequences = sequences
        self._context = sequences.context

    def run(self, parts: Sequence[StreamRows]) -> list[Logits]:
        _make_room_for_unstored(self._sequences, parts)
        branch_ids: list[int] = []
        try:
            for part in parts:
                branch_ids += self._add(part)
            logits = _decode(self._sequences)
        finally:
            self._context.batch.clear()
            for branch in branch_ids:
                self._sequences.release(branch)
        blocks, start = [], 0
        for part in parts:
            end = start + 1 + len(part.tree)
            blocks.append(logits[start:end])
            part.sequence.scored(Scored(part.pending, part.tree, _first_line(part.tree)))
            start = end
        return blocks

    def _add(self, part: StreamRows) -> list[int]:
        """Adds the part's rows to the batch; returns the ids that its branches use."""
        sequence, tree, batch = part.sequence, part.tree, self._context.batch
        tokens, start = [*sequence.unstored, *part.pending], sequence.num_stored
        if tree.is_chain:
            batch.add([*tokens, *tree.tokens], start, [sequence.id], 1 + len(tree))
            return []
        if not self._context.facts.can_cut:
            raise UnsupportedModelError(
                "this model has a recurrent state, so a draft can't branch: use a drafter that drafts chains, such as "
                "ngram, suffix, or model with n_parallel=1"
            )
        branches = self._take_branches(sequence, tree)
        batch.add(tokens, start, [sequence.id, *branches], 1)
        lines = {sequence.id: _first_line(tree)} | {id: tree.path(leaf) for id, leaf in branches.items()}
        for node, depth in enumerate(tree.depths()):
            ids = [id for id, line in lines.items() if node in line]
            batch.add([tree.tokens[node]], start + len(tokens) - 1 + depth, ids, 1)
        return list(branches)

    def _take_branches(self, sequence: LlamaSequence, tree: DraftTree) -> dict[int, int]:
        """An id for each leaf except the one on the stream's own sequence; all begin with the stream's tokens."""
        branches: dict[int, int] = {}
        try:
            for leaf in _leaves(tree, but=len(_first_line(tree)) - 1):
                branches[self._sequences.take()] = leaf
        except CapacityError:
            for id in branches:
                self._sequences.release(id)
            raise
        for id in branches:
            self._context.share(sequence.id, id, sequence.num_stored)
        return branches


class ExactForward:
    def __init__(self, sequences: Sequences, rows_at_once: int) -> None:
        self._sequences = sequences
        self._context = sequences.context
        self._rows_at_once = rows_at_once
        self._logits = np.empty((0, self._context.facts.vocab_size), np.float32)

    def run(self, parts: Sequence[StreamRows]) -> list[Logits]:
        starts = np.cumsum([0, *(1 + len(part.tree) for part in parts)]).tolist()
        if len(self._logits) < starts[-1]:
            self._logits = np.empty((starts[-1], self._context.facts.vocab_size), np.float32)
        blocks = [self._logits[start:end] for start, end in pairwise(starts)]
        for part, block in zip(parts, blocks, strict=True):
            self._score(part, block)
        return blocks

    def _score(self, part: StreamRows, block: Logits) -> None:
        sequence = part.sequence
        tokens = [*sequence.unstored, *part.pending]
        laid: list[int] = []
        block[:1] = self._read(sequence.id, tokens, sequence.num_stored, num_outputs=1)
        root = sequence.num_stored + len(tokens)
        for branch in _branches(part.tree):
            if branch.depth < len(laid):
                self._cut(sequence, root + branch.depth)
            drafted = [part.tree.tokens[node] for node in branch.nodes]
            rows = [1 + node for node in branch.nodes]
            block[rows] = self._read(sequence.id, drafted, root + branch.depth, num_outputs=len(drafted))
            laid[branch.depth :] = branch.nodes
        sequence.scored(Scored(part.pending, part.tree, laid))

    def _read(self, id: int, tokens: list[int], position: int, num_outputs: int) -> Logits:
        """Adds tokens to the cache, a few at a time; returns the logits of the last `num_outputs`."""
        rows = np.empty((num_outputs, self._context.facts.vocab_size), np.float32)
        first_output, step = len(tokens) - num_outputs, self._rows_at_once
        for start in range(0, len(tokens), step):
            piece = tokens[start : start + step]
            wanted = max(0, min(len(piece), start + len(piece) - first_output))
            self._context.batch.add(piece, position + start, [id], wanted)
            logits = _decode(self._sequences)
            if wanted:
                end = start + len(piece) - first_output
                rows[end - wanted : end] = logits
        return rows

    def _cut(self, sequence: LlamaSequence, length: int) -> None:
        if not self._context.cut(sequence.id, length):
            raise UnsupportedModelError("this model has a recurrent state, so a draft can't branch")


@dataclass(frozen=True, slots=True)
class DraftLine:
    """Nodes to add after the first `depth` nodes that are already in the cache."""

    depth: int
    nodes: list[int]


def _branches(tree: DraftTree) -> Iterator[DraftLine]:
    """Every path from root to leaf, each without the part it shares with the path before."""
    laid: list[int] = []
    for line in sorted(tree.path(leaf) for leaf in _leaves(tree)):
        depth = common_prefix_length(laid, line)
        yield DraftLine(depth, line[depth:])
        laid = line


def _leaves(tree: DraftTree, but: int = ROOT) -> list[int]:
    inner = {but, *tree.parents}
    return [node for node in range(len(tree)) if node not in inner]


def _first_line(tree: DraftTree) -> list[int]:
    """The nodes whose cells are contiguous and in the order of the text: these may stay in the cache."""
    line: list[int] = []
    for node, parent in enumerate(tree.parents):
        if parent != (line[-1] if line else ROOT):
            break
        line.append(node)
    return line


def _decode(sequences: Sequences) -> Logits:
    """Runs the batch. If cells are missing, cached tokens of closed streams are freed first."""
    while True:
        try:
            return sequences.context.decode()
        except NoRoomError:
            if not sequences.forget_oldest():
                sequences.context.batch.clear()
                raise CapacityError(
                    f"the KV cache is full: open streams use all of its {sequences.context.facts.num_cells} tokens"
                ) from None


def _make_room_for_unstored(sequences: Sequences, parts: Sequence[StreamRows]) -> None:
    """Reads tokens in advance that would not fit in one batch with the requested rows."""
    context = sequences.context
    rows = sum(len(part.sequence.unstored) + len(part.pending) + len(part.tree) for part in parts)
    if rows <= context.facts.max_rows:
        return
    for part in parts:
        sequence = part.sequence
        while missing := sequence.unstored[: context.facts.max_rows]:
            context.batch.add(missing, sequence.num_stored, [sequence.id], 0)
            _decode(sequences)
            sequence.num_stored += len(missing)
