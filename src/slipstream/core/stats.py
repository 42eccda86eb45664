"""RoundRecord and Stats: what one round did, and the sums over rounds.

Terms used everywhere: *drafted* tokens were scored by the target; *accepted* tokens were drafted and kept; the *bonus*
token is the target's own, one per round. The acceptance rate excludes the bonus token; the mean accepted length
includes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class RoundRecord:
    """One round of one stream. The seconds of a round are divided equally among its streams."""

    num_drafted: int
    num_accepted: int
    num_tokens: int  # tokens gained: accepted + bonus, fewer if the stream stopped inside the draft
    drafted_depth: int
    draft_s: float
    score_s: float
    rest_s: float


@dataclass(slots=True)
class Stats:
    """Sums over rounds, of one stream or of a whole engine. `ttft_s` and `total_s` are a stream's alone."""

    num_prompt_tokens: int = 0
    num_reused: int = 0  # prompt tokens found in the cache
    num_tokens: int = 0
    rounds: int = 0
    target_forwards: int = 0  # prompt chunks included
    num_drafted: int = 0
    num_accepted: int = 0
    drafts_counted: bool = True  # False if an engine does not report what it drafted: the two above are then unknown
    prefill_s: float = 0.0  # time of the target's forward passes over the prompt
    draft_s: float = 0.0  # time of decoding, like the next two
    score_s: float = 0.0
    rest_s: float = 0.0
    ttft_s: float = 0.0  # from submission to the first token
    total_s: float = 0.0  # from submission to the last token
    drafted_at: Counter[int] = field(default_factory=Counter)  # rounds that drafted to this depth
    accepted_at: Counter[int] = field(default_factory=Counter)  # rounds that accepted to this depth
    drafter_error: str | None = None
    policy_error: str | None = None  # of a whole engine

    def add(self, record: RoundRecord, times: int = 1) -> None:
        """`times`: the number of streams with this record."""
        self.rounds += times
        self.num_tokens += record.num_tokens * times
        self.draft_s += record.draft_s * times
        self.score_s += record.score_s * times
        self.rest_s += record.rest_s * times
        if record.num_drafted:
            self._add_draft(record, times)

    def _add_draft(self, record: RoundRecord, times: int) -> None:
        self.num_drafted += record.num_drafted * times
        self.num_accepted += record.num_accepted * times
        for depth in range(1, record.drafted_depth + 1):
            self.drafted_at[depth] += times
        for depth in range(1, record.num_accepted + 1):
            self.accepted_at[depth] += times

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted, without the bonus token. 0 if nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per round, including the bonus token. Plain decoding has 1."""
        return self.num_tokens / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first, divided by the time after the first: the decoding speed."""
        seconds = self.total_s - self.ttft_s
        return (self.num_tokens - 1) / seconds if self.num_tokens > 1 and seconds > 0 else 0.0

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON. Depth counts become lists: index 0 is depth 1."""
        plain = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("drafted_at", "accepted_at")
        }
        deepest = max(self.drafted_at, default=0)
        return plain | {
            "acceptance_rate": self.acceptance_rate,
            "mean_accepted_length": self.mean_accepted_length,
            "tokens_per_s": self.tokens_per_s,
            "drafted_by_depth": [self.drafted_at[d] for d in range(1, deepest + 1)],
            "accepted_by_depth": [self.accepted_at[d] for d in range(1, deepest + 1)],
        }
