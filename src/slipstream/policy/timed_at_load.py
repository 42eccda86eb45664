"""Measures, when a model is loaded, the seconds of forward passes of n rows and of a head's drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slipstream.core.protocols import ExtendRequest, HeadModel, KVSequence, Model, ScoreRequest, prefill
from slipstream.core.sampling import Sampling
from slipstream.core.tree import DraftTree
from slipstream.core.turn import TURN


def measure_rows(
    model: Model, sizes: Sequence[int], *, context: int, repeats: int, limit_s: float
) -> dict[int, list[float]]:
    """Times forward passes of each size, interleaved, after `context` tokens.

    Stops after `limit_s` with the results so far. Raises CapacityError if the cache is too small.
    """
    with TURN.taken():
        return _measure(model, sizes, context, repeats, limit_s)


def _measure(model: Model, sizes: Sequence[int], context: int, repeats: int, limit_s: float) -> dict[int, list[float]]:
    started = time.perf_counter()
    fitting = [size for size in sizes if size <= min(model.info.max_rows, model.info.context_length - 2)]
    if not fitting:
        return {}
    context = max(1, min(context, model.info.context_length - max(fitting) - 1))
    tokens = [i % model.info.vocab_size for i in range(max(context, max(fitting)))]
    sequence = model.open([], context + max(fitting))
    seconds: dict[int, list[float]] = {}
    try:
        prefill(model, sequence, tokens[:context])
        for size in fitting * repeats:
            request = ScoreRequest(sequence, tokens[:1], DraftTree.chain(tokens[: size - 1]), Sampling())
            seconds.setdefault(size, []).append(_score(model, request))
            if time.perf_counter() - started > limit_s:
                break
    finally:
        sequence.close()
        model.forget_prompts()
    return seconds


def measure_drafts(
    model: Model, head: HeadModel, steps: Sequence[int], *, repeats: int, limit_s: float
) -> list[tuple[int, float]]:
    """Steps and seconds of chains that a head drafts for one stream after each token of the target, interleaved.

    Stops after `limit_s` with the results so far. Raises CapacityError if the cache is too small.
    """
    asked = [*steps] * (repeats + 1)
    with TURN.taken():
        sequence = model.open([], len(asked) + max(steps))
        try:
            head.follow(sequence)
            measured = _draft_each(model, head, sequence, asked, limit_s)
        finally:
            head.leave(sequence)
            sequence.close()
            model.forget_prompts()
    return measured[len(steps) :]  # the first of each only warm up


def _draft_each(
    model: Model, head: HeadModel, sequence: KVSequence, asked: Sequence[int], limit_s: float
) -> list[tuple[int, float]]:
    started, measured = time.perf_counter(), []
    for count in asked:
        prefill(model, sequence, [0])
        began = time.perf_counter()
        head.extend([ExtendRequest(sequence, [0], count, Sampling(), 0)])
        measured.append((count, time.perf_counter() - began))
        if time.perf_counter() - started > limit_s:
            break
    return measured


def _score(model: Model, request: ScoreRequest) -> float:
    began = time.perf_counter()
    model.score([request])[0].argmax(-1)
    return time.perf_counter() - began
