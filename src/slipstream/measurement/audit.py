"""Audit: is the text really unchanged? Plain and speculative answers compared token by token.

A difference is a *tie* when the two tokens' values lie so close that rounding decides between them, and a *bug*
otherwise. How close that is depends on the model: one whose rows never depend on their company (`batch_invariant`)
has no excuse at all; others may differ by what their number format loses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from slipstream.core.generator import Answer, Generator
from slipstream.core.noise import gumbel
from slipstream.core.prefix import common_prefix_length
from slipstream.core.protocols import Model, ModelInfo, ScoreRequest, prefill
from slipstream.core.sampling import History, Row, Sampling, processed
from slipstream.core.stats import Stats
from slipstream.core.stream import Limits
from slipstream.core.tree import ROOT
from slipstream.core.turn import TURN
from slipstream.measurement.workload import Prompt

Outcome = Literal["identical", "tie", "BUG"]

# How far two logits of one token may lie apart between two ways of computing them, by number format. fp32: 8e-5 was
# seen over 96 rows of SmolLM2 in plain torch, one row against eight; the others are scaled by the format's precision.
# Generous on purpose: a wrong token is off by far more. A winner and a runner-up may each move by that much.
_LOGIT_NOISE = {"fp32": 2e-3, "fp16": 5e-2, "bf16": 4e-1}
# Quantised weights (llama.cpp's q4_1, q4_k_m …) are multiplied with activations rounded to 8 bits: the last bit of a
# sum can turn a rounding over, which moves an activation by a whole 1/127 of its block's largest, and each layer
# amplifies that. docs/llamacpp.md has the measurement: 0.4 was the most that any logit moved by default, 0.8 with an
# f16 cache. Two logits that lead may each move by this; `--exact` leaves no such room.
_QUANTISED_NOISE = 0.6


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers part."""

    position: int  # in the answer
    plain_token: int
    other_token: int
    gap: float | None  # by how much plain decoding preferred its own token; None where the engine tells no logits


@dataclass(frozen=True, slots=True)
class AuditedAnswer:
    """One answer held against plain decoding's."""

    prompt_id: str
    drafter: str
    temperature: float
    seed: int
    outcome: Outcome
    num_tokens: int
    num_accepted: int
    difference: Difference | None = None
    num_drafted: int | None = None  # None if the engine does not report it

    @classmethod
    def of(
        cls,
        prompt: Prompt,
        drafter: str,
        sampling: Sampling,
        stats: Stats,
        outcome: Outcome,
        difference: Difference | None,
    ) -> AuditedAnswer:
        """`stats` are those of the answer that is held against plain decoding's."""
        num_drafted = stats.num_drafted if stats.drafts_counted else None
        counts = (stats.num_tokens, stats.num_accepted)
        return cls(prompt.id, drafter, sampling.temperature, sampling.seed, outcome, *counts, difference, num_drafted)


@dataclass(frozen=True, slots=True)
class AuditQuestions:
    """What is asked of plain and speculative decoding alike: each prompt with each sampling."""

    prompts: Sequence[Prompt]
    samplings: Sequence[Sampling]
    limits: Limits


TokenGap = Callable[[Prompt, Sampling, list[int], int, int], float]


def audit(
    plain: Generator,
    others: Sequence[Generator],
    questions: AuditQuestions,
    tolerance: float,
    gap_of: TokenGap | None,
) -> Iterator[AuditedAnswer]:
    """Findings as they come. Only the first turn of a prompt is run. Without `gap_of` any difference is a bug."""
    for prompt, sampling in product(questions.prompts, questions.samplings):
        reference = plain.answer(prompt.request(), sampling, questions.limits)
        for other in others:
            answer = other.answer(prompt.request(), sampling, questions.limits)
            difference = _first_difference(reference, answer)
            if difference and gap_of and reference.tokens:
                common = list(reference.tokens[: difference.position])
                gap = gap_of(prompt, sampling, common, difference.plain_token, difference.other_token)
                difference = replace(difference, gap=gap)
            outcome = _outcome(difference, tolerance, sampling)
            yield AuditedAnswer.of(prompt, other.label, sampling, answer.stats, outcome, difference)


def _first_difference(a: Answer, b: Answer) -> Difference | None:
    """None where the answers are the same. An answer that ends early differs by its end (-1).

    Where an engine tells no tokens, the texts are compared, and the position is that of a character.
    """
    if a.tokens == b.tokens and a.text == b.text:
        return None
    if not a.tokens or not b.tokens:
        return Difference(common_prefix_length(a.text, b.text), -1, -1, None)
    at = common_prefix_length(list(a.tokens), list(b.tokens))
    ends = [tokens[at] if at < len(tokens) else -1 for tokens in (a.tokens, b.tokens)]
    return Difference(at, ends[0], ends[1], None)


def _outcome(difference: Difference | None, tolerance: float, sampling: Sampling) -> Outcome:
    """`tolerance` is in logits; a gap of sampled values is one of logits over the temperature."""
    if difference is None:
        return "identical"
    if difference.gap is not None and abs(difference.gap) * (sampling.temperature or 1.0) <= tolerance:
        return "tie"
    return "BUG"


def tie_tolerance(info: ModelInfo) -> float:
    """The largest gap of logits that rounding can explain: none where rows never depend on their company."""
    if info.batch_invariant:
        return 0.0
    return 2 * _LOGIT_NOISE.get(info.dtype, _QUANTISED_NOISE)


def logit_gap(model: Model, encode: Callable[[Prompt], list[int]]) -> TokenGap:
    """Recomputes, row by row as plain decoding does, by how much the plain token led at the place of a difference."""

    def gap(prompt: Prompt, sampling: Sampling, common: list[int], plain_token: int, other_token: int) -> float:
        if min(plain_token, other_token) < 0:
            return float("inf")
        start = encode(prompt)
        history = History(start)
        history.extend(common)
        with TURN.taken():
            row = processed(_last_row(model, start + common), sampling, history, ())
        values = _values(row, sampling, len(common), plain_token, other_token)
        return values[0] - values[1]

    return gap


def _last_row(model: Model, tokens: list[int]) -> Row:
    """[vocab] logits after the last token."""
    sequence = model.open(tokens, len(tokens) + 1)
    try:
        prefill(model, sequence, tokens[sequence.length : -1])
        return model.score([ScoreRequest(sequence, tokens[-1:])])[0].row(ROOT).copy()
    finally:
        sequence.close()


def _values(row: Row, sampling: Sampling, position: int, *tokens: int) -> list[float]:
    """What the argmax compares: the logit, or the scaled logit and its noise."""
    import numpy as np

    ids = np.array(tokens, np.int64)
    logits = row[ids].astype(np.float64)
    if sampling.is_greedy:
        return [float(v) for v in logits]
    return [float(v) for v in logits / sampling.temperature + gumbel(sampling.seed, position, ids)]
