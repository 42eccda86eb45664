"""Batch: the rows of one forward pass, over all streams, in the layout of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree

if TYPE_CHECKING:
    from slipstream.backends.torch.kv_pool import PooledSequence


LISTS = ("pages", "tokens", "position", "cell", "sequence", "prefix", "logit_rows", "extra_from", "extra")


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows in request order: pending tokens, then draft nodes.

    A row has a token, a rotary position, a cell where its key and value are written, and a sequence: a row of `pages`.
    It sees positions [0, prefix) of that, then the cells `extra[extra_from[r] : extra_from[r + 1]]`: draft ancestors
    that do not lie in order right behind the prefix, itself last. A chain has no extras. `logit_rows`: the rows whose
    outputs are read.
    """

    indices: torch.Tensor  # int32: `LISTS`, one after another: a tensor for each would take longer than a small step
    num_rows: int
    num_outputs: int
    num_sequences: int
    max_pages: int
    page_size: int
    max_keys: int  # the most keys any row sees

    def of(self, name: str) -> torch.Tensor:
        """One of `LISTS`."""
        sizes = [self.num_sequences * self.max_pages, *[self.num_rows] * 5, self.num_outputs, self.num_rows + 1]
        sizes.append(self.indices.shape[0] - sum(sizes))
        part = torch.split(self.indices, sizes)[LISTS.index(name)]
        return part.view(self.num_sequences, self.max_pages) if name == "pages" else part

    @property
    def tokens(self) -> torch.Tensor:
        return self.of("tokens")

    @property
    def logit_rows(self) -> torch.Tensor:
        return self.of("logit_rows")


@dataclass(slots=True)
class SequenceRows:
    """One sequence's share of a forward: tokens to append from position `start` on, and the draft after them."""

    sequence: PooledSequence
    start: int
    pending: Sequence[int]
    tree: DraftTree = EMPTY_TREE

    @property
    def num_rows(self) -> int:
        return len(self.pending) + len(self.tree)


class RowLists:
    """Lists that become a Batch."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.position: list[int] = []
        self.cell: list[int] = []
        self.sequence: list[int] = []
        self.prefix: list[int] = []
        self.extra_from: list[int] = [0]
        self.extra: list[int] = []
        self.logit_rows: list[int] = []

    def add(self, token: int, position: int, cell: int, sequence: int, prefix: int, extra: Sequence[int] = ()) -> None:
        self.tokens.append(token)
        self.position.append(position)
        self.cell.append(cell)
        self.sequence.append(sequence)
        self.prefix.append(prefix)
        self.extra.extend(extra)
        self.extra_from.append(len(self.extra))

    def build(self, pages_of: Sequence[Sequence[int]], page_size: int, device: torch.device) -> Batch:
        """`pages_of`: the pages of each sequence."""
        max_pages = max(map(len, pages_of))
        pages = [page for own in pages_of for page in (*own, *[0] * (max_pages - len(own)))]
        indices = [*pages, *self.tokens, *self.position, *self.cell, *self.sequence, *self.prefix, *self.logit_rows]
        indices += (*self.extra_from, *self.extra)
        return Batch(
            torch.from_numpy(np.array(indices, np.int32)).to(device),  # `torch.tensor` takes 25 us
            num_rows=len(self.tokens),
            num_outputs=len(self.logit_rows),
            num_sequences=len(pages_of),
            max_pages=max_pages,
            page_size=page_size,
            max_keys=max(self.position) + 1,
        )


def build_batch(parts: Sequence[SequenceRows], page_size: int, device: torch.device) -> Batch:
    """Packs pending tokens and drafts. The sequences must have room for them already."""
    rows = RowLists()
    for number, part in enumerate(parts):
        for position, token in enumerate(part.pending, start=part.start):
            rows.add(token, position, part.sequence.cell(position), number, position + 1)
        rows.logit_rows.append(len(rows.tokens) - 1)
        _add_tree(rows, part.sequence, number, part.start + len(part.pending), part.tree)
    return rows.build([part.sequence.pages for part in parts], page_size, device)


def _add_tree(rows: RowLists, sequence: PooledSequence, number: int, base: int, tree: DraftTree) -> None:
    """Node i is written at position base + i, in the order of the nodes, and rotated by its depth."""
    depths = tree.depths()
    in_order: list[bool] = []  # whether a node's whole path lies at base, base + 1, …
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        in_order.append(parent == node - 1 and (parent == ROOT or in_order[parent]))
        position = base + depths[node] - 1
        cell = sequence.cell(base + node)
        if in_order[node]:
            rows.add(token, position, cell, number, position + 1)
        else:
            ancestors = [sequence.cell(base + i) for i in tree.path(node)]
            rows.add(token, position, cell, number, base, ancestors)
        rows.logit_rows.append(len(rows.tokens) - 1)


def note_features(parts: Sequence[SequenceRows], features: torch.Tensor | None) -> None:
    """Gives the sequences that a head follows the features of their rows, which stand one part after another."""
    if features is None:
        return
    start = 0
    for part in parts:
        if part.sequence.trail is not None:
            part.sequence.trail.score(features[start : start + part.num_rows])
        start += part.num_rows
