"""Ledger: drafted tokens, gained tokens and seconds of recent rounds, for the report."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.core.policy import RoundOutcome
from slipstream.policy.constants import MEMORY


class Ledger:
    def __init__(self) -> None:
        self._streams = self._drafted = self._seconds = 0.0
        self._tokens: dict[int, float] = {}  # by the number of streams in the round

    def add(self, outcome: RoundOutcome) -> None:
        self._streams = MEMORY * self._streams + outcome.num_streams
        self._drafted = MEMORY * self._drafted + outcome.num_drafted
        self._seconds = MEMORY * self._seconds + outcome.total_s
        self._tokens = {streams: MEMORY * tokens for streams, tokens in self._tokens.items()}
        gained = outcome.num_streams + outcome.num_accepted
        self._tokens[outcome.num_streams] = self._tokens.get(outcome.num_streams, 0.0) + gained

    def drafted_per_step(self) -> float:
        """Drafted tokens per stream and round."""
        return self._drafted / self._streams if self._streams else 0.0

    def speedup(self, plain_s: Callable[[int], float]) -> float:
        """The time that plain rounds would have taken for the same tokens, divided by the actual time."""
        plain = sum(plain_s(streams) * tokens / streams for streams, tokens in self._tokens.items())
        return plain / self._seconds if self._seconds and plain else 1.0
