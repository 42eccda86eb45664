"""Measures the seconds of forward passes of n rows."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slipstream.core.protocols import DraftNodes, HeadModel, Model, ScoreRequest, prefill
from slipstream.core.sampling import Sampling
from slipstream.core.tree import ROOT, DraftTree
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


def measure_head(model: Model, head: HeadModel, sizes: Sequence[int], repeats: int) -> dict[int, list[float]]:
    """Times a step of a head with so many rows, interleaved. Raises CapacityError if the cache is too small."""
    with TURN.taken():
        sequence = model.open([], 1 + max(sizes))
        seconds: dict[int, list[float]] = {}
        try:
            head.follow(sequence)
            prefill(model, sequence, [0])
            head.begin_draft([sequence], [0])
            for size in [*sizes] * repeats:
                began = time.perf_counter()
                head.read([DraftNodes(sequence, range(size), list(range(size)), [ROOT] * size, depth=1)])
                seconds.setdefault(size, []).append(time.perf_counter() - began)
        finally:
            head.leave(sequence)
            sequence.close()
            model.forget_prompts()
        return seconds


def _score(model: Model, request: ScoreRequest) -> float:
    began = time.perf_counter()
    model.score([request])[0].argmax(-1)
    return time.perf_counter() - began
