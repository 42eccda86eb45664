"""Sampling settings, and the target's own token at a node: argmax(processed logits / temperature + noise)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from slipstream.core.checks import real_number, whole_number, wrong_value
from slipstream.core.noise import MOST_NOISE, Domain, coupled_argmax, token_noise
from slipstream.errors import NonFiniteLogitsError

Row = npt.NDArray[np.float32]  # [vocab] logits of one node
Tokens = npt.NDArray[np.int64]
LEAST_TEMPERATURE = 1e-6  # here noise only decides between nearly equal logits; lower values are greedy
MOST_BIAS = 1e9  # far above any logit, far below the float32 limit; -1e9 is often used to forbid a token


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target chooses. Order: penalties, bias, temperature, top-k, top-p, min-p.

    The repetition penalty counts prompt and answer, presence and frequency penalties only the answer. Raises UsageError
    for a value out of range.
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        checked = {
            "temperature": _temperature(self.temperature),
            "top_k": whole_number("top_k", self.top_k, 0),
            "top_p": real_number("top_p", self.top_p, math.ulp(0), 1, "above 0, at most 1 (off)"),
            "min_p": real_number("min_p", self.min_p, 0, math.nextafter(1, 0), "0 (off) or more, below 1"),
            # The range keeps float32 logits finite: they are divided or multiplied by it.
            "repetition_penalty": real_number(
                "repetition_penalty", self.repetition_penalty, 0.01, 100, "between 0.01 and 100; 1 is off"
            ),
            "presence_penalty": _penalty("presence_penalty", self.presence_penalty),
            "frequency_penalty": _penalty("frequency_penalty", self.frequency_penalty),
            "logit_bias": _checked_bias(self.logit_bias),
            "seed": whole_number("seed", self.seed, 0, (1 << 64) - 1),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def uses_history(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def narrows(self) -> bool:
        """Whether some tokens are excluded from sampling."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def changes_logits(self) -> bool:
        return self.uses_history or bool(self.logit_bias)


def _temperature(value: float) -> float:
    expected = f"0 (greedy), or {LEAST_TEMPERATURE:g} or more"
    number = real_number("temperature", value, 0, math.inf, expected)
    return number if number == 0 else real_number("temperature", value, LEAST_TEMPERATURE, math.inf, expected)


def _penalty(name: str, value: float) -> float:
    return real_number(name, value, -100, 100, "between -100 and 100; 0 is off")


def _checked_bias(bias: Mapping[int, float]) -> dict[int, float]:
    """Ids may be text, as in JSON."""
    if not isinstance(bias, Mapping):
        raise wrong_value("logit_bias", bias, "token ids and numbers, as in {42: -5.0}")
    checked = {}
    for token, value in bias.items():
        token_id = int(token) if isinstance(token, str) and token.isdecimal() else token
        token_id = whole_number("a token id of logit_bias", token_id, 0)
        checked[token_id] = real_number(
            f"logit_bias of token {token_id}", value, -MOST_BIAS, MOST_BIAS, f"between {-MOST_BIAS:g} and {MOST_BIAS:g}"
        )
    return checked


class History:
    """How often each token occurs in a stream, for the penalties."""

    def __init__(self, prompt: Iterable[int] = ()) -> None:
        self._prompt = set(prompt)
        self._answer: Counter[int] = Counter()

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._answer[token] += 1

    def penalise(self, row: Row, sampling: Sampling, path: Sequence[int]) -> None:
        """Applies the penalties to `row` in place, counting this stream's tokens and then `path`.

        The row may have fewer columns than the stream has ids: a draft model may generate only some of them.
        """
        answer = self._answer + Counter(path) if path else self._answer
        if sampling.repetition_penalty != 1:
            seen = np.fromiter(self._prompt | answer.keys(), np.int64)
            seen = seen[seen < len(row)]
            logits = row[seen]
            penalty = np.float32(sampling.repetition_penalty)
            row[seen] = np.where(logits > 0, logits / penalty, logits * penalty)
        if answer:
            tokens = np.fromiter(answer.keys(), np.int64, len(answer))
            counts = np.fromiter(answer.values(), np.float32, len(answer))
            known = tokens < len(row)
            loss = np.float32(sampling.presence_penalty) + np.float32(sampling.frequency_penalty) * counts
            row[tokens[known]] -= loss[known]


def processed(row: Row, sampling: Sampling, history: History, path: Sequence[int]) -> Row:
    """The logits after penalties and bias. The row itself if nothing changes, else a copy."""
    if not sampling.changes_logits:
        return row
    row = row.copy()
    if sampling.uses_history:
        history.penalise(row, sampling, path)
    for token, bias in sampling.logit_bias.items():
        if 0 <= token < len(row):
            row[token] += np.float32(bias)
    return row


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that remain after top-k, top-p and min-p, and their scaled logits."""

    tokens: npt.NDArray[np.int64]
    z: npt.NDArray[np.float64]

    def only(self, keep: npt.NDArray[np.generic]) -> Candidates:
        return Candidates(self.tokens[keep], self.z[keep])

    def peak(self) -> float:
        """The largest. Raises NonFiniteLogitsError."""
        return _finite(float(self.z.max()))

    def probabilities(self) -> npt.NDArray[np.float64]:
        weights = np.exp(self.z - self.peak())
        return np.asarray(weights / weights.sum(), np.float64)


def candidates(row: Row, sampling: Sampling, least: float = -math.inf) -> Candidates:
    """The tokens that may be sampled; those with a logit below `least` may be left out where nothing else excludes
    tokens. The temperature must not be 0. Raises NonFiniteLogitsError.

    There are few arrays as long as the vocabulary here: allocating one takes longer than the work on it.
    """
    peak, temperature = _finite(float(row.max())), sampling.temperature
    tokens = None
    if 0 < sampling.top_k < len(row):
        tokens = np.sort(np.argpartition(row, -sampling.top_k)[-sampling.top_k :])
    if sampling.top_p < 1:
        tokens = _nucleus(row, tokens, peak, sampling)
    if tokens is None:
        least = max(least, peak + temperature * math.log(sampling.min_p)) if sampling.min_p > 0 else least
        tokens = np.flatnonzero(row >= np.nextafter(np.float32(least), np.float32(-np.inf)))
    left = Candidates(tokens, row[tokens].astype(np.float64) / temperature)
    return left.only(left.z >= left.peak() + math.log(sampling.min_p)) if sampling.min_p > 0 else left


def _nucleus(row: Row, among: Tokens | None, peak: float, sampling: Sampling) -> Tokens:
    """The smallest set of most likely tokens whose sum reaches `top_p`, in the order of their ids."""
    logits = row if among is None else row[among]
    shares = logits.astype(np.float64)
    shares -= peak
    shares /= sampling.temperature
    np.exp(shares, out=shares)
    total, top_p = shares.sum(), sampling.top_p
    # Tokens below this share cannot sum to 1 - top_p, so the nucleus lies in the rest: sort only that.
    rest = np.flatnonzero(shares >= total * (1 - top_p) / len(shares))
    order = rest[np.argsort(-shares[rest], kind="stable")]
    reached = np.cumsum(shares[order]) / total
    count = int(np.searchsorted(reached, top_p * (1 - 1e-12))) + 1
    kept = np.sort(order[:count])
    return kept if among is None else among[kept]


def likeliest(row: Row) -> int:
    """The token with the largest logit; ties go to the lower id.

    Positive floats sort like their bits, and numpy searches integers in half the time.
    """
    token = int(row.view(np.int32).argmax())
    return token if row[token] > 0 else int(row.argmax())


def _finite(logit: float) -> float:
    if not math.isfinite(logit):
        raise NonFiniteLogitsError(f"the largest logit is {logit}")
    return logit


def sample(row: Row, sampling: Sampling, position: int) -> int:
    """One token from processed logits: greedy, or coupled to the noise of (seed, position).

    Raises NonFiniteLogitsError.
    """
    if sampling.is_greedy:
        token = likeliest(row)
        _finite(row[token])
        return token
    left = candidates(row, sampling, _least_that_wins(row, sampling, position))
    return coupled_argmax(left.z, left.tokens, sampling.seed, position)


def _least_that_wins(row: Row, sampling: Sampling, position: int) -> float:
    """A lower logit loses to the largest even with the most noise."""
    best = int(row.argmax())
    noise = token_noise(sampling.seed, position, best)
    return float(row[best]) + sampling.temperature * (noise - MOST_NOISE)


def distribution(row: Row, sampling: Sampling) -> npt.NDArray[np.float64]:
    """[vocab] the probabilities from which `sample` draws."""
    full = np.zeros(len(row), np.float64)
    if sampling.is_greedy:
        full[sample(row, sampling, 0)] = 1.0
        return full
    left = candidates(row, sampling)
    full[left.tokens] = left.probabilities()
    return full


def draw(p: npt.NDArray[np.float64], seed: int, position: int, domain: Domain) -> int:
    """One sample of the probabilities `p` [vocab]."""
    tokens = np.flatnonzero(p > 0)
    return coupled_argmax(np.log(p[tokens]), tokens, seed, position, domain)
