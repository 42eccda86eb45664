"""The objective: expected tokens per second of a round, (S + sum of p_i) / (t(S + n) + drafting time)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    tokens, best_tokens, best_size, best_rate = start.tokens, start.tokens, 0, start.rate
    for size, chance in enumerate(chances, start=1):
        tokens += chance
        rate = tokens / max(seconds[size] + other_s, 1e-12)
        if rate > best_rate:
            best_tokens, best_size, best_rate = tokens, size, rate
    return RoundOption(best_size, best_tokens, seconds[best_size] + other_s) if best_size else start
