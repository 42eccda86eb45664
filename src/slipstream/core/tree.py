"""DraftTree: the tokens a drafter proposes. A chain is a tree, and a tree may be empty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

ROOT = -1  # the last pending token, which the first drafted token follows
_CHAIN_PARENTS = tuple(range(ROOT, 63))  # of chains of up to 64 nodes
_CHAIN_DEPTHS = list(range(1, 65))


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Drafted tokens in topological order: `parents[i] < i`, and ROOT for those that follow the stream itself.

    `confidence[i]` is the drafter's own estimate that the target accepts node i if it accepted the parent.
    `proposals[i]` is the distribution from which node i was sampled, for the rejection verifier; None means a certain
    proposal (n-gram, greedy). Both are empty if the drafter has none.

    Raises ValueError for a parent that is not earlier, or two siblings with the same token.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()
    proposals: tuple[npt.NDArray[np.float64] | None, ...] = ()
    _children: dict[tuple[int, int], int] | None = field(init=False, repr=False, compare=False)  # None: a chain
    _depths: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        num_nodes = len(self.tokens)
        if len(self.parents) != num_nodes:
            raise ValueError(f"a draft of {num_nodes} tokens has {len(self.parents)} parents")
        for name, entries in (("confidence", self.confidence), ("proposals", self.proposals)):
            if len(entries) not in (0, num_nodes):
                raise ValueError(f"{name} has {len(entries)} entries for {num_nodes} tokens")
        if tuple(self.parents) == _CHAIN_PARENTS[:num_nodes]:  # most drafts: nothing can be wrong with it
            object.__setattr__(self, "_children", None)
            object.__setattr__(self, "_depths", _CHAIN_DEPTHS[:num_nodes])
            return
        children: dict[tuple[int, int], int] = {}
        depths: list[int] = []
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if not ROOT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}: parents must come before their children")
            if (parent, token) in children:
                raise ValueError(f"token {token} is drafted twice after node {parent}: siblings must be distinct")
            children[parent, token] = node
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        object.__setattr__(self, "_children", children)
        object.__setattr__(self, "_depths", depths)

    @classmethod
    def chain(
        cls,
        tokens: Iterable[int],
        confidence: Sequence[float] = (),
        proposals: Sequence[npt.NDArray[np.float64] | None] = (),
    ) -> DraftTree:
        tokens = tuple(tokens)
        return cls(tokens, tuple(range(ROOT, len(tokens) - 1)), tuple(confidence), tuple(proposals))

    def __len__(self) -> int:
        return len(self.tokens)

    def __bool__(self) -> bool:
        return bool(self.tokens)

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` with this token, or None."""
        if self._children is not None:
            return self._children.get((node, token))
        following = node + 1
        return following if following < len(self.tokens) and self.tokens[following] == token else None

    def children(self, node: int) -> list[int]:
        """Nodes that follow `node`, in the order they were proposed."""
        return [i for i, parent in enumerate(self.parents) if parent == node]

    @property
    def is_chain(self) -> bool:
        return self._children is None or all(parent == node - 1 for node, parent in enumerate(self.parents))

    def depths(self) -> list[int]:
        """Depth of each node; children of ROOT have depth 1."""
        return self._depths

    def path(self, node: int) -> list[int]:
        """Nodes from the first below ROOT to `node`. Empty for ROOT."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def path_tokens(self, node: int) -> list[int]:
        return [self.tokens[i] for i in self.path(node)]

    def keep(self, nodes: Iterable[int]) -> DraftTree:
        """The tree of these nodes only. Raises ValueError if the parent of a kept node is missing."""
        order = sorted(set(nodes))
        count = len(order)
        if not order or count == len(self):
            return self if order else EMPTY_TREE
        if order[-1] == count - 1:  # its beginning
            return DraftTree(self.tokens[:count], self.parents[:count], self.confidence[:count], self.proposals[:count])
        new_index = {old: new for new, old in enumerate(order)} | {ROOT: ROOT}
        orphans = [node for node in order if self.parents[node] not in new_index]
        if orphans:
            raise ValueError(f"nodes {orphans} are kept without their parents")
        return DraftTree(
            tokens=tuple(self.tokens[i] for i in order),
            parents=tuple(new_index[self.parents[i]] for i in order),
            confidence=tuple(self.confidence[i] for i in order) if self.confidence else (),
            proposals=tuple(self.proposals[i] for i in order) if self.proposals else (),
        )


class TreeBuilder:
    """Builds a DraftTree node by node; adding a token that already exists returns its node."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._confidence: list[float] = []
        self._proposals: list[npt.NDArray[np.float64] | None] = []
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def add(
        self, parent: int, token: int, confidence: float = 0.5, proposal: npt.NDArray[np.float64] | None = None
    ) -> int:
        known = self._children.get((parent, token))
        if known is not None:
            return known
        node = self._children[parent, token] = len(self._tokens)
        self._tokens.append(token)
        self._parents.append(parent)
        self._confidence.append(confidence)
        self._proposals.append(proposal)
        return node

    def path_tokens(self, node: int) -> list[int]:
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self._tokens[node])
            node = self._parents[node]
        return tokens[::-1]

    def build(self) -> DraftTree:
        return DraftTree(tuple(self._tokens), tuple(self._parents), tuple(self._confidence), tuple(self._proposals))


EMPTY_TREE = DraftTree()
