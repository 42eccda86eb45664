"""`chained`: asks several drafters in order and takes the first draft that is confident."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from slipstream.core.protocols import Drafter, Observation
from slipstream.core.stream import Stream
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.errors import UsageError


class ChainedDrafter:
    """A draft is confident when its first token is, by the drafter's own account. The last one is always believed."""

    def __init__(self, drafters: Sequence[Drafter], confidence: float = 0.5) -> None:
        if not drafters:
            raise UsageError("chained needs at least one drafter, for example chained:suffix,model")
        self._drafters = list(drafters)
        self._confidence = confidence

    @property
    def name(self) -> str:
        return "chained:" + ",".join(d.name for d in self._drafters)

    @property
    def is_free(self) -> bool:
        return all(d.is_free for d in self._drafters)

    def begin(self, stream: Stream) -> None:
        for drafter in self._drafters:
            drafter.begin(stream)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        trees = [EMPTY_TREE] * len(streams)
        open_for = list(range(len(streams)))
        for drafter in self._drafters:
            if not open_for:
                break
            proposals = drafter.propose([streams[i] for i in open_for], [budgets[i] for i in open_for])
            for i, tree in zip(open_for, proposals, strict=True):
                trees[i] = tree or trees[i]  # an unsure draft beats none
            open_for = [i for i in open_for if not self._is_confident(trees[i])]
        return trees

    def _is_confident(self, tree: DraftTree) -> bool:
        return bool(tree) and (not tree.confidence or tree.confidence[0] >= self._confidence)

    def observe(self, observations: Sequence[Observation]) -> None:
        for drafter in self._drafters:
            drafter.observe(observations)

    def end(self, stream: Stream) -> None:
        for drafter in self._drafters:
            with suppress(Exception):  # one that can't tidy up must not keep the others from it
                drafter.end(stream)
