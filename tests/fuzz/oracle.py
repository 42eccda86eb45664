"""The expected answer of a request: plain decoding, one token at a time, written from the documented contract.

It shares nothing with the engine but the noise itself (`slipstream.core.noise.gumbel`). Logits processing follows the
docstring of `Sampling`: penalties, bias, temperature, top-k, top-p, min-p, in float32 up to the bias and in float64
after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fuzz.request import Request
from slipstream.core.noise import gumbel
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits

Row = npt.NDArray[np.float32]
Logits = Callable[[Sequence[int]], Row]  # tokens so far -> [vocab] logits of the next one


class Text(Protocol):
    """What the oracle needs of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Answer:
    """`reason` is None for an answer that has not reached its end."""

    tokens: tuple[int, ...]
    text: str
    reason: str | None


def plain_answer(request: Request, logits: Logits, text: Text, context_length: int) -> Answer:
    """What plain decoding answers."""
    answer: list[int] = []
    while True:
        row = logits([*request.prompt, *answer])
        answer.append(choose(row, request.sampling, request.prompt, answer))
        reached = judge(answer, request.limits, text, context_length - len(request.prompt))
        if reached.reason is not None:
            return reached


def judge(answer: Sequence[int], limits: Limits, text: Text, room: int) -> Answer:
    """Text of these tokens, and why an answer ends after the last of them; `room` is what the context holds."""
    ends = answer[-1] in limits.stop_tokens or (answer[-1] in text.eos_ids and not limits.ignore_eos)
    shown = text.decode(answer[:-1] if ends else answer)
    found = [at for stop in limits.stop if stop and (at := shown.find(stop)) >= 0]
    if found:
        return Answer(tuple(answer), shown[: min(found)], "stop")
    if ends:
        return Answer(tuple(answer), shown, "stop")
    full = len(answer) >= min(limits.max_tokens, room)
    return Answer(tuple(answer), shown, "length" if full else None)


def choose(row: Row, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]) -> int:
    """The token after `prompt` and `answer`: argmax(processed logits / temperature + noise), ties to the lower id."""
    row = biased(penalised(np.array(row, np.float32), sampling, prompt, answer), sampling)
    if sampling.temperature == 0:
        return int(np.argmax(row))
    z = row.astype(np.float64) / sampling.temperature
    kept = filtered(z, sampling)
    noisy = np.full(len(z), -math.inf)
    noisy[kept] = z[kept] + gumbel(sampling.seed, len(answer), np.array(kept, np.int64))
    return int(np.argmax(noisy))


def penalised(row: Row, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]) -> Row:
    """Repetition penalty by prompt and answer; presence and frequency penalties by the answer alone. In place."""
    repetition = np.float32(sampling.repetition_penalty)
    for token in {*prompt, *answer}:
        row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
    for token in set(answer):
        count = np.float32(list(answer).count(token))
        row[token] -= np.float32(sampling.presence_penalty) + np.float32(sampling.frequency_penalty) * count
    return row


def biased(row: Row, sampling: Sampling) -> Row:
    """Adds the bias of each token of the vocabulary. In place."""
    for token, bias in sampling.logit_bias.items():
        if 0 <= token < len(row):
            row[token] += np.float32(bias)
    return row


def filtered(z: npt.NDArray[np.float64], sampling: Sampling) -> list[int]:
    """The token ids that top-k, top-p and min-p leave, each applied to what the one before it left."""
    kept = sorted(range(len(z)), key=lambda token: (-z[token], token))
    if sampling.top_k:
        kept = kept[: sampling.top_k]
    if sampling.top_p < 1:
        weights = [math.exp(z[token] - z[kept[0]]) for token in kept]
        goal, reached, size = sampling.top_p * math.fsum(weights) * (1 - 1e-12), 0.0, 0
        while reached < goal and size < len(kept):
            reached += weights[size]
            size += 1
        kept = kept[: max(1, size)]
    if sampling.min_p > 0:
        kept = [token for token in kept if z[token] >= z[kept[0]] + math.log(sampling.min_p)]
    return kept
