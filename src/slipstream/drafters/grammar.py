"""`grammar`: proposes the tokens that a stream's grammar forces. They cost nothing and are nearly always accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from slipstream.core.stream import Stream
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.drafters.base import FreeDrafter

_CONFIDENCE = 0.95  # the target may spell the same text with other tokens


@runtime_checkable
class ForcingConstraint(Protocol):
    """A constraint that knows what has to follow."""

    def forced(self, answer: Sequence[int]) -> list[int]:
        """The tokens that have to follow the answer so far; empty if there is a choice."""
        ...


class GrammarDrafter(FreeDrafter):
    name = "grammar"

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        return [self._propose_one(stream, budget) for stream, budget in zip(streams, budgets, strict=True)]

    def _propose_one(self, stream: Stream, budget: int) -> DraftTree:
        constraint = stream.options.constraint
        if not isinstance(constraint, ForcingConstraint):
            return EMPTY_TREE
        tokens = constraint.forced(stream.answer)[:budget]
        return DraftTree.chain(tokens, [_CONFIDENCE] * len(tokens))
