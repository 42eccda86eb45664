"""PromptSample: what one generator answered to one prompt, and what it took."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.core.generator import Answer
from slipstream.measurement.ratio import ratio
from slipstream.measurement.workload import Prompt


@dataclass(frozen=True, slots=True)
class PromptSample:
    """One generator's answers to one prompt (a conversation has several) in one pass."""

    generator: str
    prompt: Prompt
    pass_number: int
    answers: tuple[Answer, ...]

    @property
    def num_tokens(self) -> int:
        return sum(a.stats.num_tokens for a in self.answers)

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first of each answer, over the time after it."""
        seconds = sum(a.stats.total_s - a.stats.ttft_s for a in self.answers)
        return ratio(sum(max(a.stats.num_tokens - 1, 0) for a in self.answers), max(seconds, 0.0))

    @property
    def drafts_counted(self) -> bool:
        return all(a.stats.drafts_counted for a in self.answers)

    @property
    def end_to_end_s(self) -> float:
        return sum(a.stats.total_s for a in self.answers)

    def total(self, counter: str) -> float:
        """The sum of one field of the answers' stats."""
        return float(sum(getattr(a.stats, counter) for a in self.answers))

    def same_text_as(self, other: PromptSample) -> bool:
        mine, theirs = ([(a.tokens, a.text) for a in sample.answers] for sample in (self, other))
        return mine == theirs
