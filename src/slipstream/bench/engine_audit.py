"""Audit of an engine over HTTP: texts compared, and a difference judged by the engine's own probabilities.

An engine that computes a batch of drafted rows in another order than single rows may decide a near tie differently.
Where it tells the probabilities of its candidates, a difference counts as a tie when the two tokens were as good as
equally likely to plain decoding; where it does not, or where tokens are sampled, a difference stays unexplained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from slipstream.bench.audit import Difference, Finding, Outcome
from slipstream.bench.workload import Prompt
from slipstream.core.generator import Answer, Generator
from slipstream.core.prefix import common_prefix
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.engine import Candidate

# Of log-probabilities: quantised weights and caches in 16 bits move logits by some hundredths between batch shapes.
TIE = 0.15

# The gap at a character of plain decoding's answer to the text that the other one has there; None where unknown.
GapAt = Callable[[Prompt, int, str], float | None]
Answers = Mapping[tuple[str, int], Answer]


def answer_all(
    generator: Generator, prompts: Sequence[Prompt], samplings: Sequence[Sampling], limits: Limits
) -> Iterator[tuple[tuple[str, int], Answer]]:
    """The first turn of every prompt under every sampling, by (prompt id, number of the sampling)."""
    for prompt in prompts:
        for number, sampling in enumerate(samplings):
            yield (prompt.id, number), generator.answer(prompt.request(), sampling, limits)


def compare(
    plain: Answers,
    other: Answers,
    label: str,
    prompts: Sequence[Prompt],
    samplings: Sequence[Sampling],
    gap_at: GapAt,
) -> Iterator[Finding]:
    """A finding for each answer that both gave."""
    for prompt in prompts:
        for number, sampling in enumerate(samplings):
            key = (prompt.id, number)
            if key in plain and key in other:
                difference = _difference(prompt, plain[key].text, other[key].text, sampling, gap_at)
                yield Finding(
                    prompt_id=prompt.id,
                    drafter=label,
                    temperature=sampling.temperature,
                    seed=sampling.seed,
                    outcome=_outcome(difference),
                    num_tokens=other[key].stats.num_tokens,
                    num_accepted=other[key].stats.num_accepted,
                    difference=difference,
                )


def _difference(prompt: Prompt, plain: str, other: str, sampling: Sampling, gap_at: GapAt) -> Difference | None:
    if plain == other:
        return None
    at = common_prefix(plain, other)
    gap = gap_at(prompt, at, other) if sampling.is_greedy else None
    return Difference(at, -1, -1, gap)


def gap_of_candidates(tokens: Sequence[Sequence[Candidate]], at: int, other: str) -> float | None:
    """By how much plain decoding preferred its token at character `at` to the one that `other` goes on with there.

    `tokens` are its candidates, likeliest first, for every token of its answer. None where they don't reach so far;
    infinite where the other token is not among them.
    """
    start = 0
    for candidates in tokens:
        if not candidates:
            return None
        chosen = candidates[0]
        end = start + len(chosen.token)
        if at < end:
            taken = [c for c in candidates[1:] if c.token and other[start:].startswith(c.token)]
            return chosen.logprob - taken[0].logprob if taken else float("inf")
        start = end
    return None


def _outcome(difference: Difference | None) -> Outcome:
    if difference is None:
        return "identical"
    return "tie" if difference.gap is not None and difference.gap <= TIE else "BUG"
