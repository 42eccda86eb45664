"""The cost of scoring n rows in one forward, measured: what decides how long a draft may be."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from slipstream.core.protocols import Model
from slipstream.measurement.ratio import ratio
from slipstream.measurement.results import RowCost
from slipstream.policy.timed_at_load import measure_rows

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)


def measure_row_cost(
    model: Model, rows: Sequence[int] = ROWS, context: int = 128, repeats: int = 5, limit_s: float = 20.0
) -> list[RowCost]:
    """Medians of interleaved forwards behind `context` tokens, the first of each size left out.

    Ends early, with what it has, after `limit_s`.
    """
    seconds = measure_rows(model, rows, context=context, repeats=repeats + 1, limit_s=limit_s)
    warm = {n: statistics.median(of_size[1:] or of_size) for n, of_size in seconds.items()}
    return [RowCost(n, cost, ratio(cost, warm[rows[0]])) for n, cost in warm.items()]
