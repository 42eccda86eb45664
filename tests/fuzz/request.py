"""Request: what is asked of an engine, and random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits


@dataclass(frozen=True, eq=False)
class Request:
    """A good request: it has to be answered, and with `matching` its answer is known."""

    prompt: list[int]
    sampling: Sampling
    limits: Limits
    verifier: str = "matching"


@dataclass(frozen=True)
class Bounds:
    """What requests have to keep to in one world."""

    vocab: int
    context_length: int
    max_answer: int  # tokens, so that a case stays short
    page: int  # prompt lengths around its multiples are the interesting ones
    letters: str  # stop strings are made of them


class RequestMaker:
    """Random requests that share beginnings, as conversations do. The same `rng` state gives the same requests."""

    def __init__(self, rng: random.Random, bounds: Bounds) -> None:
        self._rng = rng
        self._bounds = bounds
        self._base = self._text(bounds.context_length)

    def request(self) -> Request:
        rng = self._rng
        prompt = self._prompt()
        verifier = "rejection" if rng.random() < 0.1 else "matching"
        return Request(prompt, self._sampling(), self._limits(len(prompt)), verifier)

    def control(self) -> Request:
        """A short request for which every world has room."""
        return Request(self._base[:5], Sampling(temperature=0.9, seed=11), Limits(max_tokens=8))

    def _text(self, length: int) -> list[int]:
        """Random tokens, often with repeated parts, so that lookups find something."""
        rng, vocab = self._rng, self._bounds.vocab
        tokens: list[int] = []
        while len(tokens) < length:
            if len(tokens) > 4 and rng.random() < 0.5:
                start = rng.randrange(len(tokens) - 3)
                tokens += tokens[start : start + rng.randint(2, 12)]
            else:
                tokens += [rng.randrange(vocab) for _ in range(rng.randint(1, 8))]
        return tokens[:length]

    def _prompt(self) -> list[int]:
        rng, bounds = self._rng, self._bounds
        length = rng.choice([1, 2, rng.randint(1, 24), self._near_page()])
        if rng.random() < 0.1:  # the context is nearly full
            length = bounds.context_length - rng.choice([1, 2, 3, 9])
        length = max(1, min(length, bounds.context_length - 1))
        shared = rng.choice([0, length, rng.randint(0, length)])
        return (self._base[:shared] + self._text(length - shared))[:length]

    def _near_page(self) -> int:
        page = self._bounds.page
        return page * self._rng.randint(1, 3) + self._rng.choice([-1, 0, 1])

    def _sampling(self) -> Sampling:
        rng, vocab = self._rng, self._bounds.vocab
        settings: dict[str, object] = {}
        if rng.random() < 0.6:
            settings |= {"temperature": rng.choice([0.3, 0.7, 1.0, 1.7]), "seed": rng.randrange(1 << 64)}
        for chance, name, values in (
            (0.2, "top_k", [1, 2, 5, vocab, vocab + 7]),
            (0.2, "top_p", [0.05, 0.5, 0.9, 0.999]),
            (0.2, "min_p", [0.01, 0.2, 0.9]),
            (0.15, "repetition_penalty", [0.8, 1.3, 2.0]),
            (0.15, "presence_penalty", [-0.5, 0.8, 3.0]),
            (0.15, "frequency_penalty", [-0.3, 0.4, 1.5]),
        ):
            if rng.random() < chance:
                settings[name] = rng.choice(values)
        if rng.random() < 0.15:
            settings["logit_bias"] = {rng.randrange(vocab): rng.choice([-100.0, -2.5, 1.5, 6.0]) for _ in range(3)}
        return Sampling(**settings)  # type: ignore[arg-type]

    def _limits(self, prompt_length: int) -> Limits:
        rng, bounds = self._rng, self._bounds
        max_tokens = rng.choice([1, 2, rng.randint(1, bounds.max_answer), bounds.max_answer])
        if prompt_length > bounds.context_length - bounds.max_answer:
            max_tokens = rng.choice([max_tokens, bounds.context_length])
        stop = tuple(self._stop_string() for _ in range(rng.choice([0, 0, 1, 3])))
        stop_tokens = frozenset(sample_ids(rng, bounds.vocab, rng.choice([0, 0, 0, 2])))
        return Limits(max_tokens, stop, stop_tokens, ignore_eos=rng.random() < 0.3)

    def _stop_string(self) -> str:
        return "".join(self._rng.choice(self._bounds.letters) for _ in range(self._rng.choice([1, 2, 2, 3])))


def sample_ids(rng: random.Random, vocab: int, count: int) -> Sequence[int]:
    return [rng.randrange(vocab) for _ in range(count)]
