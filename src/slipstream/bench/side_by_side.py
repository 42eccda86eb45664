"""Plain and speculative decoding of the same prompts, interleaved, on one loaded model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slipstream.core.engine import Engine
from slipstream.core.generation import Generation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt, decoded both ways `len(plain)` times."""

    kind: str
    plain: list[Generation]
    speculative: list[Generation]

    @property
    def same_text(self) -> bool:
        return all(run.tokens == self.plain[0].tokens for run in (*self.plain, *self.speculative))

    @property
    def plain_tokens_per_s(self) -> float:
        return statistics.median(run.stats.tokens_per_s for run in self.plain)

    @property
    def tokens_per_s(self) -> float:
        return statistics.median(run.stats.tokens_per_s for run in self.speculative)

    @property
    def speedup(self) -> float:
        return self.tokens_per_s / self.plain_tokens_per_s if self.plain_tokens_per_s else 0.0

    @property
    def acceptance_rate(self) -> float:
        drafted = sum(run.stats.num_drafted for run in self.speculative)
        return sum(run.stats.num_accepted for run in self.speculative) / drafted if drafted else 0.0

    @property
    def tokens_per_forward(self) -> float:
        rounds = sum(run.stats.rounds for run in self.speculative)
        return sum(run.stats.num_tokens for run in self.speculative) / rounds if rounds else 0.0


def compare(
    make_engine: Callable[[bool], Engine],
    prompts: Mapping[str, Messages],
    sampling: Sampling,
    limits: Limits,
    repeats: int = 2,
) -> Iterator[Comparison]:
    """Yields a comparison a prompt. `make_engine(speculative)` gives a fresh engine on the same model.

    Each run has its own engine, so that no drafter has met the prompt before.
    """
    for kind, messages in prompts.items():
        runs: dict[bool, list[Generation]] = {False: [], True: []}
        for turn in range(2 * repeats):
            speculative = turn % 4 in (1, 2)  # plain, speculative, speculative, plain: a drift hits both alike
            generation = make_engine(speculative).generate(messages, sampling, limits)
            runs[speculative].append(generation.result())
        yield Comparison(kind, runs[False], runs[True])
