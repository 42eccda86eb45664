"""Audit of an engine over HTTP: texts compared, and a difference judged by the engine's own probabilities.

An engine that computes a batch of drafted rows in another order than single rows may decide a near tie differently.
Where it tells the probabilities of its candidates, a difference counts as a tie when the two tokens were as good as
equally likely to plain decoding; where it does not, or where tokens are sampled, a difference stays unexplained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.core.generator import Answer, Generator
from slipstream.core.prefix import common_prefix_length
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.engine_types import TokenCandidate
from slipstream.errors import EngineError
from slipstream.measurement.audit import AuditedAnswer, Difference, Outcome
from slipstream.measurement.results import PLAIN
from slipstream.measurement.runner import Opener, Progress
from slipstream.measurement.workload import Prompt

# Of log-probabilities: quantised weights and caches in 16 bits move logits by some hundredths between batch shapes.
TIE = 0.15

# The gap at a character of plain decoding's answer to the text that the other one has there; None where unknown.
TextGap = Callable[[Prompt, int, str], float | None]
Answers = Mapping[tuple[str, int], Answer]


@dataclass(slots=True)
class EngineAudit:
    """`errors` are what ended engines early; what was compared until then is here all the same."""

    answers: list[AuditedAnswer] = field(default_factory=list)
    complete: bool = True
    errors: list[str] = field(default_factory=list)


def audit_engines(
    openers: Mapping[str, Opener],
    prompts: Sequence[Prompt],
    samplings: Sequence[Sampling],
    limits: Limits,
    gap_of: Callable[[Generator], TextGap],
    progress: Progress,
) -> EngineAudit:
    """One engine after the other, plain decoding last: it is asked how close a choice was where texts differ.

    Ctrl-C, or an engine that dies, leaves what was answered until then to be compared.
    """
    audit, answered = EngineAudit(), dict[str, dict[tuple[str, int], Answer]]()
    total = len(prompts) * len(samplings) * len(openers)
    others = [label for label in openers if label != PLAIN]

    def compared(gap_at: TextGap) -> list[AuditedAnswer]:
        plain = answered.get(PLAIN, {})
        sides = [(label, answered.get(label, {})) for label in others]
        return [answer for label, own in sides for answer in compare(plain, own, label, prompts, samplings, gap_at)]

    def ask(label: str) -> None:
        answers = answered.setdefault(label, {})
        with openers[label]() as generator:
            for key, answer in answer_all(generator, prompts, samplings, limits):
                answers[key] = answer
                progress(sum(map(len, answered.values())), total, label)
            if label == PLAIN:
                audit.answers = compared(gap_of(generator))

    try:
        for label in (*others, PLAIN):
            try:
                ask(label)
            except EngineError as error:
                audit.complete = False
                audit.errors.append(f"{label}: {error}")
    except KeyboardInterrupt:
        audit.complete = False
    if not audit.complete and not audit.answers:  # plain decoding can't be asked any more
        audit.answers = compared(lambda prompt, at, other: None)
    return audit


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
    gap_at: TextGap,
) -> Iterator[AuditedAnswer]:
    """Each answer that both gave."""
    for prompt in prompts:
        for number, sampling in enumerate(samplings):
            key = (prompt.id, number)
            if key in plain and key in other:
                difference = _difference(prompt, plain[key].text, other[key].text, sampling, gap_at)
                stats, outcome = other[key].stats, _outcome(difference)
                yield AuditedAnswer.of(prompt, label, sampling, stats, outcome, difference)


def _difference(prompt: Prompt, plain: str, other: str, sampling: Sampling, gap_at: TextGap) -> Difference | None:
    if plain == other:
        return None
    at = common_prefix_length(plain, other)
    gap = gap_at(prompt, at, other) if sampling.is_greedy else None
    return Difference(at, -1, -1, gap)


def gap_of_candidates(tokens: Sequence[Sequence[TokenCandidate]], at: int, other: str) -> float | None:
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
