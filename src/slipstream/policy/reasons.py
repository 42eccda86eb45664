"""The reason why `auto` drafts or does not, as text, from the numbers of the decision."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.policy.auto_plan import AutoPlan
from slipstream.policy.round_times import RoundTimes


@dataclass(frozen=True, slots=True)
class Reason:
    """The numbers of one decision; the text is created only on request."""

    num_drafted: int = 0
    tokens_per_step: float = 1.0
    speedup: float = 1.0  # predicted, over plain decoding
    chance: float | None = None
    cost: float = 1.0  # of a step that verifies one token more, over a plain step

    def __str__(self) -> str:
        if self.num_drafted:
            noun = "token" if self.num_drafted == 1 else "tokens"
            return f"drafting {self.num_drafted} {noun}: expect {self.tokens_per_step:.2f} tokens per step"
        if self.chance is None:
            return "nothing was drafted yet"
        return (
            f"speculation off: drafts are expected to be accepted {self.chance:.0%} of the time here, and drafting and "
            f"verifying one token takes {self.cost:.2f}x as long as a plain step"
        )


def reason_for(plan: AutoPlan, num_drafted: int, drafting_s: float, times: RoundTimes, last: Reason) -> Reason:
    """The reason for a round that scored this many drafted tokens. If no drafter was considered, the last reason is
    kept.
    """
    num_streams, plain_s = len(plan.view.streams), plan.plain.seconds
    if num_drafted:
        speedup = plan.chosen.rate / plan.plain.rate
        return Reason(num_drafted, plan.chosen.tokens / num_streams, speedup)
    if plan.likeliest is None:
        return last
    seconds = plan.shortest_s or times.seconds(num_streams + 1) + drafting_s
    return Reason(chance=plan.likeliest, cost=seconds / plain_s)
