"""LossBudget: how many plain rounds may be lost on exploration, and the current balance."""

from __future__ import annotations

from slipstream.policy.constants import CREDIT, LOSS_SHARE


class LossBudget:
    """The balance grows with a share of the time and with gains, and falls with the time that rounds lose against plain
    ones.

    It is limited to plus and minus `CREDIT` plain rounds and starts full: old gains can't pay for new losses, and old
    losses do not prevent new trials. `save_for` raises the limit for what costs more at once.
    """

    def __init__(self) -> None:
        self._rounds = CREDIT
        self._most = CREDIT

    def save_for(self, rounds: float) -> None:
        """Lets the balance grow to this many plain rounds, if that is more than `CREDIT`."""
        self._most = max(CREDIT, rounds)

    def allows(self, rounds: float) -> bool:
        """Whether this many plain rounds may be lost."""
        return rounds <= self._rounds

    def record(self, gained: float) -> None:
        """Records a round, and how many plain rounds it saved."""
        self._rounds = max(-CREDIT, min(self._most, self._rounds + LOSS_SHARE + gained))
