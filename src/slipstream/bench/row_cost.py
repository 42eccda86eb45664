"""The cost of scoring n rows in one forward, measured: what decides how long a draft may be."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from slipstream.bench.results import RowCost
from slipstream.core.protocols import Model, ScoreRequest, prefill
from slipstream.core.sampling import Sampling
from slipstream.core.tree import DraftTree

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)


def measure_row_cost(
    model: Model, rows: Sequence[int] = ROWS, context: int = 128, repeats: int = 5, limit_s: float = 20.0
) -> list[RowCost]:
    """Medians of interleaved forwards behind `context` tokens. Ends early, with what it has, after `limit_s`."""
    started = time.perf_counter()
    context = min(context, model.info.context_length - max(rows) - 1)
    tokens = [i % model.info.vocab_size for i in range(context)]
    sequence = model.open([], context + max(rows))
    try:
        prefill(model, sequence, tokens)
        seconds: dict[int, list[float]] = {n: [] for n in rows}
        for turn in range(repeats + 1):
            for n in rows:
                request = ScoreRequest(sequence, tokens[-1:], DraftTree.chain(tokens[: n - 1]), Sampling())
                began = time.perf_counter()
                model.score([request])[0].argmax(-1)
                if turn:  # the first turn warms up
                    seconds[n].append(time.perf_counter() - began)
            if turn and time.perf_counter() - started > limit_s:
                break
    finally:
        sequence.close()
        model.forget_prompts()
    one = statistics.median(seconds[rows[0]])
    return [RowCost(n, cost, cost / one) for n in rows if (cost := statistics.median(seconds[n]))]
