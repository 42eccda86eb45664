"""Policy: what a round drafts. The engine asks for a plan, follows it, and passes back one record of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

from slipstream.core.stream import Drafter, Observation, Stream
from slipstream.core.tree import EMPTY_TREE, DraftTree


@dataclass(frozen=True, slots=True)
class RoundView:
    """What a policy knows about the next round. Streams that still read their prompts are not included."""

    streams: Sequence[Stream]
    rooms: Sequence[int]  # tokens that may be drafted for each stream
    max_nodes: int  # drafted tokens that one forward pass can score, over all streams
    can_run_ahead: bool = False  # the device can start the next round before the host asks for it
    reads_prompts: bool = False  # prompts are read in the same forward pass
    early_draft: int | None = None  # the device has started this round, with so many drafted tokens for each stream

    @property
    def started_plain(self) -> bool:
        """Whether the device has started this round without a draft, so that none can be scored in it."""
        return self.early_draft == 0


class Ask(NamedTuple):
    """A request for a draft of at most `budget` tokens from one of a stream's drafters.

    A token with a lower chance than `least_chance` does not pay: a drafter that `stops_early` stops there.
    """

    stream: Stream
    drafter: Drafter
    budget: int
    least_chance: float = 0.0


class RoundPlan(Protocol):
    # After `keep`: how many tokens the next round drafts for each stream (0: a plain round), for a device that starts
    # it early. None if that is not known yet.
    next_draft: int | None

    def asks(self) -> Sequence[Ask]:
        """What to ask now, given the proposals so far. Empty if no more are needed."""
        ...

    def receive(self, asks: Sequence[Ask], proposals: Sequence[DraftTree], draft_s: float) -> None:
        """Records proposals and the seconds they took."""
        ...

    def keep(self) -> list[DraftTree]:
        """What to score for each stream."""
        ...


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """The cost and the result of a round."""

    rows: int  # of the forward pass, over all streams
    num_streams: int
    draft_s: Mapping[str, float]  # by the name of the drafter
    score_s: float
    total_s: float  # from its start to that of the next, without time outside the engine
    has_prefill: bool  # it included prompt chunks, so it does not measure decoding
    early_draft: int | None  # as in `RoundView`, if the round scored drafts of that length; else None
    observations: Sequence[Observation] = ()
    plan: RoundPlan | None = None  # the plan that was followed; None if there was none, or if it failed
    plan_s: float = 0.0  # what the policy itself took to decide what to score

    @property
    def drafting_s(self) -> float:
        return sum(self.draft_s.values())

    @property
    def num_drafted(self) -> int:
        return sum([len(o.scored.tokens) for o in self.observations])

    @property
    def num_accepted(self) -> int:
        return sum([len(o.verdict.path) for o in self.observations])


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """A policy's report."""

    policy: str
    budget: float  # recent mean of drafted tokens per stream and round
    reason: str
    predicted_speedup: float | None  # of the last choice, over plain decoding; None if it was not compared
    observed_speedup: float | None  # recent, over measured plain rounds
    cost_by_rows_s: dict[int, float] = field(default_factory=dict)
    acceptance_by_depth: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


class Policy(Protocol):
    @property
    def name(self) -> str: ...

    def plan(self, view: RoundView) -> RoundPlan: ...

    def record(self, outcome: RoundOutcome) -> None:
        """Learns from a round."""
        ...

    def forget(self, stream: Stream) -> None:
        """The stream is over."""
        ...

    def explain(self) -> PolicyReport: ...


@dataclass(slots=True)
class PlainPlan:
    """Drafts nothing."""

    view: RoundView
    next_draft: int | None = 0

    def asks(self) -> Sequence[Ask]:
        return ()

    def receive(self, asks: Sequence[Ask], proposals: Sequence[DraftTree], draft_s: float) -> None:
        pass

    def keep(self) -> list[DraftTree]:
        return [EMPTY_TREE] * len(self.view.streams)


class PlainPolicy:
    """Drafts nothing: the engine's default policy."""

    name = "plain"

    def plan(self, view: RoundView) -> PlainPlan:
        return PlainPlan(view)

    def record(self, outcome: RoundOutcome) -> None:
        pass

    def forget(self, stream: Stream) -> None:
        pass

    def explain(self) -> PolicyReport:
        return PolicyReport(self.name, 0.0, "no policy was given, so nothing is drafted", 1.0, 1.0)


def fit(trees: Sequence[DraftTree], max_nodes: int) -> list[DraftTree]:
    """Cuts the last nodes of the drafts, so that all drafts together have at most `max_nodes`."""
    if sum(map(len, trees)) <= max_nodes:
        return list(trees)
    fitted = []
    for tree in trees:
        keep = max(0, min(len(tree), max_nodes))
        max_nodes -= keep
        fitted.append(tree if keep == len(tree) else tree.keep(range(keep)))
    return fitted
