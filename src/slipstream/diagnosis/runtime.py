"""Engines that run: whether they speculate at all, and whether what they draft is taken."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.engines.engine_types import Speculation, SpeculationState
from slipstream.findings import Finding, rule

OFF = rule(
    "runtime-speculation-off",
    "slows",
    "an engine that runs and does not speculate",
    "{engine} decodes plainly. If it was asked to speculate, it fell back without a word.",
    "Look at its log: slipstream doctor --engine {engine} --log FILE. slipstream launch {engine} refuses such a start.",
)
UNSEEN = rule(
    "runtime-speculation-unseen",
    "note",
    "an engine that does not tell whether it speculates",
    "{engine} does not say whether it drafts.",
    "Compare it with plain decoding: slipstream bench --engine {engine} --url URL --plain-url URL.",
)
LOW = rule(
    "runtime-acceptance-low",
    "slows",
    "a running engine that takes few of its drafted tokens",
    "Most of what is drafted is thrown away: below about a third accepted, drafting rarely pays.",
    "Draft fewer tokens a round, or search: slipstream tune --engine {engine}.",
)
FINE = rule(
    "runtime-acceptance",
    "note",
    "what a running engine drafted and took so far",
    "{engine} speculates.",
    "Nothing to do. Whether it pays is measured by: slipstream bench --engine {engine}.",
)

_LOW_RATE = 0.35
_ENOUGH = 200  # drafted tokens before a rate means something


def check_running(engine: str, state: SpeculationState, counters: Speculation | None) -> Iterator[Finding]:
    """What an engine says of itself while it runs. `counters` are those since its start."""
    if state.on is False:
        yield OFF.finding(state.evidence, engine=engine)
        return
    if counters and counters.num_drafted:
        rate = counters.acceptance_rate
        evidence = f"{counters.num_accepted} of {counters.num_drafted} drafted tokens accepted ({rate:.0%})"
        is_low = counters.num_drafted >= _ENOUGH and rate < _LOW_RATE
        yield (LOW if is_low else FINE).finding(evidence, engine=engine)
    elif state.on is None:
        yield UNSEEN.finding(state.evidence, engine=engine)
    else:
        yield FINE.finding(state.evidence, engine=engine)
