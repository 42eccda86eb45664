"""The objective: expected tokens per second of a round, (S + sum of p_i) / (t(S + n) + drafting time)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class RoundOption:
    """One way to run a round, with its expected tokens and seconds."""

    size: int  # drafted tokens, or the depth to draft to; 0 is plain decoding
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / max(self.seconds, 1e-12)


def best_prefix(start: RoundOption, chances: Sequence[float], seconds: Sequence[float], other_s: float) -> RoundOption:
    """The option with the highest rate among scoring nothing (`start`), the first token, the first two, and so on.

    Token i is accepted with `chances[i]`, and rounds that score i tokens take `seconds[i] + other_s`.
    """
    tokens = list(accumulate(chances, initial=start.tokens))
    round_s = [s + other_s for s in seconds]
    rates = [expected / (s if s > 1e-12 else 1e-12) for expected, s in zip(tokens, round_s, strict=True)]
    rates[0] = start.rate
    best = rates.index(max(rates))
    return RoundOption(best, tokens[best], round_s[best]) if best else start
