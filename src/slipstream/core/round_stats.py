"""Adds a round to the figures of its streams and of the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slipstream.core.policy import RoundOutcome
from slipstream.core.stats import RoundRecord, Stats
from slipstream.core.stream import Stream


def enter_round(outcome: RoundOutcome, prefilling: Sequence[Stream], total: Stats) -> None:
    """Adds the round to the stats of each stream, at an equal share of its seconds, and to `total`. `prefilling`:
    streams that read a prompt, which is no decoding: their seconds are counted apart."""
    share = 1.0 / outcome.num_streams
    for stream in prefilling:
        stream.stats.prefill_s += outcome.score_s * share
    total.prefill_s += outcome.score_s * share * len(prefilling)
    prefilled = {stream.id for stream in prefilling}
    # Streams with equal figures share a record: making 256 of them takes longer than all else here.
    records: dict[tuple[int, int, int, int, float], RoundRecord] = {}
    counts: Counter[tuple[int, int, int, int, float]] = Counter()
    for o in outcome.observations:
        depths, own_share = o.scored.depths(), 0.0 if o.stream.id in prefilled else share
        figures = len(depths), max(depths, default=0), min(len(o.verdict.path), o.num_taken), o.num_taken, own_share
        if figures not in records:
            records[figures] = _record(outcome, *figures)
        counts[figures] += 1
        o.stream.stats.add(records[figures])
    for figures, record in records.items():
        total.add(record, counts[figures])


def _record(
    outcome: RoundOutcome, num_drafted: int, drafted_depth: int, num_accepted: int, num_taken: int, share: float
) -> RoundRecord:
    """One stream's record of a round. `share`: of the round's seconds."""
    rest_s = outcome.total_s - outcome.score_s - outcome.drafting_s
    times_s = outcome.drafting_s * share, outcome.score_s * share, rest_s * share
    return RoundRecord(num_drafted, num_accepted, num_taken, drafted_depth, *times_s)
