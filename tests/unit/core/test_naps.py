"""Naps: who sleeps, when all wake, and how often."""

from __future__ import annotations

from fakes import make_stream
from slipstream.core.naps import Naps
from slipstream.core.protocols import Observation
from slipstream.core.stream import Stream
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.core.verify import Verdict


def idle(stream: Stream) -> Observation:
    return Observation(stream, EMPTY_TREE, EMPTY_TREE, Verdict((), 1))


def drafted(stream: Stream) -> Observation:
    tree = DraftTree.chain([1])
    return Observation(stream, tree, tree, Verdict((), 2))


def run(naps: Naps, streams: list[Stream], rounds: int, awake_s: float = 1.0, asleep_s: float = 1.0) -> list[bool]:
    """Whether all slept, round by round, while nothing is worth scoring."""
    slept = []
    for _ in range(rounds):
        asleep = all(naps.is_asleep(s) for s in streams)
        slept.append(asleep)
        naps.record([idle(s) for s in streams], asleep_s if asleep else awake_s)
    return slept


def test_a_new_stream_is_awake_and_naps_after_a_few_rounds_in_vain() -> None:
    slept = run(Naps(), [make_stream([1])], 12)
    assert not any(slept[:4])
    assert sum(slept[4:]) >= 3


def test_what_is_announced_for_the_next_round_comes_true() -> None:
    naps, stream = Naps(), make_stream([1])
    run(naps, [stream], 9)
    for _ in range(40):
        announced = naps.is_asleep(stream, ahead=1)
        naps.record([idle(stream)], 1.0)
        assert naps.is_asleep(stream) == announced


def test_a_draft_worth_scoring_wakes_the_stream() -> None:
    naps, stream = Naps(), make_stream([1])
    run(naps, [stream], 20)
    naps.record([drafted(stream)], 1.0)
    assert not any(naps.is_asleep(stream, ahead) for ahead in range(8))


def test_all_streams_wake_in_the_same_rounds() -> None:
    naps, early, late = Naps(), make_stream([1]), make_stream([1])
    run(naps, [early], 7)
    run(naps, [early, late], 10)
    assert [naps.is_asleep(early, a) for a in range(20)] == [naps.is_asleep(late, a) for a in range(20)]


def test_costly_looks_become_rare_and_cheap_ones_frequent() -> None:
    cheap, costly = Naps(), Naps()
    often = run(cheap, [make_stream([1])], 400, awake_s=1.02)
    rarely = run(costly, [make_stream([1])], 400, awake_s=1.3)
    assert often[100:].count(False) > 3 * rarely[100:].count(False) > 0
    seconds = sum(1.0 if asleep else 1.3 for asleep in rarely[100:])
    assert seconds / len(rarely[100:]) < 1.02
