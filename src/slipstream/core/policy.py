"""Policy: how much to draft. `fixed(k)` does as it is told; `auto` (auto_policy.py) is never slower than plain."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.core.acceptance import AcceptanceModel
from slipstream.core.cost import CostModel
from slipstream.core.protocols import Observation
from slipstream.core.stream import Stream
from slipstream.core.tree import DraftTree
from slipstream.errors import UsageError


@dataclass(slots=True)
class RoundCost:
    """What one round took."""

    rows: int  # of the forward, over all streams
    num_streams: int
    draft_s: Mapping[str, float]  # by the name of the drafter
    score_s: float
    total_s: float
    has_prefill: bool  # prompt chunks were in it, so it measures no decoding
    ran_ahead: bool = False  # the device was at it before it was asked to (see nap.py)
    is_stalled: bool = False  # a plain round that had been quicker without a thought of drafting

    @property
    def drafting_s(self) -> float:
        return sum(self.draft_s.values())


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """A policy's account of itself."""

    policy: str
    budget: float  # mean drafted tokens a stream and round, lately
    reason: str
    predicted_speedup: float  # of the last choice, over plain decoding
    observed_speedup: float  # lately, over plain rounds as they were measured
    cost_by_rows_s: dict[int, float] = field(default_factory=dict)
    acceptance_by_depth: list[float] = field(default_factory=list)


class Policy(Protocol):
    @property
    def name(self) -> str: ...

    def budgets(self, streams: Sequence[Stream], caps: Sequence[int]) -> list[int]:
        """Nodes to ask the drafter for, per stream; `caps` is what there is room for."""
        ...

    def select(self, streams: Sequence[Stream], trees: Sequence[DraftTree], max_nodes: int) -> list[DraftTree]:
        """The part of each draft that is worth scoring, `max_nodes` over all streams at most."""
        ...

    def record(self, cost: RoundCost, observations: Sequence[Observation]) -> None:
        """Learns from a round."""
        ...

    def forget(self, stream: Stream) -> None:
        """The stream is over."""
        ...

    def explain(self) -> PolicyReport: ...


class Ledger:
    """Streams, drafted tokens, tokens gained and seconds of the last rounds."""

    def __init__(self, window: int = 64) -> None:
        self._rounds: deque[tuple[int, int, int, float]] = deque(maxlen=window)

    def add(self, cost: RoundCost, observations: Sequence[Observation]) -> None:
        drafted = sum(len(o.scored) for o in observations)
        tokens = cost.num_streams + sum(len(o.verdict.path) for o in observations)
        self._rounds.append((cost.num_streams, drafted, tokens, cost.total_s))

    def budget(self) -> float:
        """Drafted tokens a stream and round."""
        streams = sum(r[0] for r in self._rounds)
        return sum(r[1] for r in self._rounds) / streams if streams else 0.0

    def speedup(self, costs: CostModel) -> float:
        """Tokens gained over those that plain rounds, as they were measured, would have given in the same time."""
        plain_s = sum(costs.seconds(r[0]) * r[2] / r[0] for r in self._rounds if r[0])
        seconds = sum(r[3] for r in self._rounds)
        return plain_s / seconds if seconds else 1.0


class FixedPolicy:
    """Always asks for the same draft and scores all of it."""

    def __init__(self, budget: int) -> None:
        if budget < 0:
            raise UsageError(f"fixed({budget}): the draft length is 0 or more")
        self._budget = budget
        self._costs = CostModel()
        self._acceptance = AcceptanceModel()
        self._ledger = Ledger()

    @property
    def name(self) -> str:
        return f"fixed({self._budget})"

    def budgets(self, streams: Sequence[Stream], caps: Sequence[int]) -> list[int]:
        return [min(self._budget, cap) for cap in caps]

    def select(self, streams: Sequence[Stream], trees: Sequence[DraftTree], max_nodes: int) -> list[DraftTree]:
        return fit(trees, max_nodes)

    def record(self, cost: RoundCost, observations: Sequence[Observation]) -> None:
        if not cost.has_prefill:
            self._costs.record(cost.rows, cost.total_s - cost.drafting_s)
            self._ledger.add(cost, observations)
        for o in observations:
            self._acceptance.observe(o.stream.id, self.name, o.judged, o.verdict.tokens(o.scored))

    def forget(self, stream: Stream) -> None:
        self._acceptance.forget(stream.id)

    def explain(self) -> PolicyReport:
        speedup = self._ledger.speedup(self._costs)
        return PolicyReport(
            policy=self.name,
            budget=self._ledger.budget(),
            reason="the draft length was set by hand",
            predicted_speedup=speedup,
            observed_speedup=speedup,
            cost_by_rows_s=self._costs.curve(),
            acceptance_by_depth=self._acceptance.depth_chances(self.name, self._budget),
        )


def fit(trees: Sequence[DraftTree], max_nodes: int) -> list[DraftTree]:
    """Cuts the last nodes of the drafts so that all together have `max_nodes` at most."""
    fitted = []
    for tree in trees:
        keep = max(0, min(len(tree), max_nodes))
        max_nodes -= keep
        fitted.append(tree if keep == len(tree) else tree.keep(range(keep)))
    return fitted
