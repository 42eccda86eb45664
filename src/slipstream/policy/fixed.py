"""FixedPolicy: always asks for the same draft and scores all of it."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.policy import Ask, PolicyReport, RoundOutcome, RoundView, fit
from slipstream.core.stream import Stream
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.errors import UsageError
from slipstream.policy.acceptance import Acceptance, AcceptanceRecord, JudgedDraft
from slipstream.policy.ledger import Ledger
from slipstream.policy.round_times import RoundTimes


class FixedPlan:
    """Asks every drafter for the same length and keeps everything."""

    def __init__(self, view: RoundView, budget: int) -> None:
        self.next_draft: int | None = None
        self._view = view
        self._budget = budget
        self._proposed: dict[int, DraftTree] = {}  # by stream

    def asks(self) -> list[Ask]:
        rooms = zip(self._view.streams, self._view.rooms, strict=True)
        asks = [(s, s.drafter, min(self._budget, room)) for s, room in rooms]
        return [] if self._proposed else [Ask(s, drafter, n) for s, drafter, n in asks if drafter and n > 0]

    def receive(self, asks: Sequence[Ask], proposals: Sequence[DraftTree], draft_s: float) -> None:
        self._proposed = {ask.stream.id: tree for ask, tree in zip(asks, proposals, strict=True)}

    def keep(self) -> list[DraftTree]:
        kept = fit([self._proposed.get(s.id, EMPTY_TREE) for s in self._view.streams], self._view.max_nodes)
        if any(kept) or not self._budget:  # a round without a draft is not what is wanted
            self.next_draft = self._budget
        return kept


class FixedPolicy:
    def __init__(self, budget: int) -> None:
        if budget < 0:
            raise UsageError(f"fixed({budget}): the draft length must be 0 or more")
        self._budget = budget
        self._times = RoundTimes()
        self._acceptance = Acceptance()
        self._ledger = Ledger()

    @property
    def name(self) -> str:
        return f"fixed({self._budget})"

    def plan(self, view: RoundView) -> FixedPlan:
        return FixedPlan(view, self._budget)

    def record(self, outcome: RoundOutcome) -> None:
        if not outcome.has_prefill:
            self._times.record(outcome.rows, outcome.total_s - outcome.drafting_s, is_plain=not outcome.num_drafted)
            self._ledger.add(outcome)
        drafted = [o for o in outcome.observations if o.scored]
        self._acceptance.observe([JudgedDraft(o.scored, o.tokens, AcceptanceRecord()) for o in drafted])

    def forget(self, stream: Stream) -> None:
        pass

    def explain(self) -> PolicyReport:
        return PolicyReport(
            policy=self.name,
            budget=self._ledger.drafted_per_step(),
            reason="fixed draft length",
            predicted_speedup=None,  # there are no plain rounds to compare with
            observed_speedup=None,
            cost_by_rows_s=self._times.curve(),
            acceptance_by_depth=[chance.p for chance in self._acceptance.of_depths(self._budget, [])],
        )
