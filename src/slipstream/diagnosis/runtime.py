"""Running engines: whether they speculate, and how many drafted tokens they accept."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.diagnosis.log_acceptance import LOW_RATE
from slipstream.engines.engine_types import Speculation, SpeculationState
from slipstream.findings import Finding, rule

OFF = rule(
    "runtime-speculation-off",
    "slows",
    "A running engine does not speculate",
    "{engine} runs without speculation. If speculation was configured, it fell back silently.",
    "Check its log: slipstream doctor --engine {engine} --log FILE. slipstream launch {engine} refuses such a start.",
)
UNSEEN = rule(
    "runtime-speculation-unseen",
    "note",
    "A running engine does not report whether it speculates",
    "{engine} does not report whether it drafts.",
    "Compare it with plain decoding: slipstream bench --engine {engine} --url URL --plain-url URL.",
)
LOW = rule(
    "runtime-acceptance-low",
    "slows",
    "A running engine rejects most drafted tokens",
    "Most drafted tokens are rejected. With less than about a third accepted, drafting rarely pays off.",
    "Draft fewer tokens per step, or search for better settings: slipstream tune --engine {engine}.",
)
FINE = rule(
    "runtime-acceptance",
    "note",
    "Acceptance of a running engine so far",
    "{engine} speculates.",
    "Nothing to do. To measure whether it pays off: slipstream bench --engine {engine}.",
)

_ENOUGH = 200  # drafted tokens needed for a meaningful rate


def check_running(engine: str, state: SpeculationState, counters: Speculation | None) -> Iterator[Finding]:
    """Findings from what a running engine reports. `counters` count from its start."""
    if state.on is False:
        yield OFF.finding(state.evidence, engine=engine)
        return
    if counters and counters.num_drafted:
        rate = counters.acceptance_rate
        evidence = f"{counters.num_accepted} of {counters.num_drafted} drafted tokens accepted ({rate:.0%})"
        is_low = counters.num_drafted >= _ENOUGH and rate < LOW_RATE
        yield (LOW if is_low else FINE).finding(evidence, engine=engine)
    elif state.on is None:
        yield UNSEEN.finding(state.evidence, engine=engine)
    else:
        yield FINE.finding(state.evidence, engine=engine)
