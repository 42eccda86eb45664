"""LossBudget: the plain rounds that may be lost on finding out, and what became of them."""

from __future__ import annotations

from slipstream.policy.constants import CREDIT, LOSS_SHARE


class LossBudget:
    """A share of the time flows in, what rounds lose against plain ones flows out, and gains make up for losses.

    It lies between plus and minus `CREDIT` plain rounds and starts full: what was gained long ago pays for no loss of
    today, and what was lost long ago does not keep anybody from trying again.
    """

    def __init__(self) -> None:
        self._rounds = CREDIT

    def allows(self, rounds: float) -> bool:
        """Whether so many plain rounds may be lost."""
        return rounds <= self._rounds

    def record(self, gained: float) -> None:
        """A round, and how many plain rounds it saved."""
        self._rounds = max(-CREDIT, min(CREDIT, self._rounds + LOSS_SHARE + gained))
