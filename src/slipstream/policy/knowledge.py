"""Knowledge: everything that `auto` has learned about rounds, drafters and streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.core.stream import Stream
from slipstream.policy.acceptance import Acceptance, AcceptanceRecord, Chance
from slipstream.policy.budget import LossBudget
from slipstream.policy.constants import MEMORY, PRIOR
from slipstream.policy.draft_times import DraftTimes
from slipstream.policy.early_draft_times import EarlyDraftTimes
from slipstream.policy.objective import RoundOption
from slipstream.policy.round_times import RoundTimes


@dataclass(slots=True)
class DrafterState:
    acceptance: Acceptance = field(default_factory=Acceptance)
    times: DraftTimes = field(default_factory=DraftTimes)
    early: EarlyDraftTimes = field(default_factory=EarlyDraftTimes)
    worth: float = 0.0  # recent plain rounds saved per request
    rounds_since: int = 0  # it was asked
    recovery: float = 0.0  # how often, after a first token that was wrong or missing, the next draft's is right

    def add_recovery(self, is_right: bool) -> None:
        self.recovery = MEMORY * self.recovery + (1 - MEMORY) * is_right

    def add_worth(self, gained: float) -> None:
        self.worth = MEMORY * self.worth + (1 - MEMORY) * gained


@dataclass(slots=True)
class StreamState:
    recent: AcceptanceRecord = field(default_factory=AcceptanceRecord)  # recent first tokens of drafts
    read_to: dict[str, int] = field(default_factory=dict)  # by drafter: the stream's length when it was asked last
    num_scored: int = 0  # drafted tokens of the last draft
    was_right: dict[str, bool] = field(default_factory=dict)  # by drafter: the first token of its last draft


@dataclass(slots=True)
class Decision:
    """What was found to pay off in rounds that the device starts by itself. It holds for the next few."""

    drafter: str
    round: RoundOption
    rounds_left: int


@dataclass(slots=True)
class Knowledge:
    max_draft: int
    times: RoundTimes = field(default_factory=RoundTimes)
    budget: LossBudget = field(default_factory=LossBudget)
    decision: Decision | None = None
    plain_rounds_left: int = 0  # still to come, which are not planned
    asking_s: float | None = None  # seconds of the policy itself for each drafter that is asked
    is_waiting: bool = False  # the device was not allowed to start the next round, because of a draft
    drafters: dict[str, DrafterState] = field(default_factory=lambda: defaultdict(DrafterState))
    streams: dict[int, StreamState] = field(default_factory=lambda: defaultdict(StreamState))

    def rest(self) -> None:
        """Records a plain round without a plan."""
        self.plain_rounds_left -= 1
        self.budget.record(0.0)
        for drafter in self.drafters.values():
            drafter.rounds_since += 1

    def early_round_s(self, drafter: str, num_streams: int, depth: int) -> float:
        """Seconds of a round whose drafts the device makes by itself, as the sum of its parts: a forward pass and
        drafts of this depth."""
        times = self.times
        drafting_s = self.drafters[drafter].times.seconds(num_streams, depth, 0)
        return times.seconds(num_streams * (1 + depth)) + drafting_s - times.head_start(num_streams)

    def num_unread(self, drafter: str, streams: Sequence[Stream]) -> int:
        """Tokens that a drafter has to read before it drafts. It has read the prompts, and each stream as far as it was
        when it was last asked; the last token is part of its first step."""
        unread = [len(s.tokens) - 1 - self.streams[s.id].read_to.get(drafter, s.prompt_length) for s in streams]
        return sum([count for count in unread if count > 0])

    def chances(self, drafter: str, streams: Sequence[Stream], depth: int, seen: float | None = None) -> list[Chance]:
        """The probability that drafts for these streams are accepted to each depth. The longer the drafter was not
        asked, the less its observations count. With `seen` they all count, and the prior weighs only so many tokens.
        """
        state = self.drafters[drafter]
        recent = [self.streams[s.id].recent for s in streams]
        left, prior = (MEMORY**state.rounds_since, 2 * PRIOR) if seen is None else (1.0, seen)
        return state.acceptance.of_depths(depth, recent, left, prior)
