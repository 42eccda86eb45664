"""Nap: when it begins, when it is interrupted for a look, and how often."""

from __future__ import annotations

from slipstream.core.nap import Nap


def run(nap: Nap, rounds: int, ahead_s: float = 1.0, other_s: float = 1.0, drafted: bool = False) -> list[bool]:
    """Whether drafters were left alone, round by round. A device runs ahead after a round that announced it."""
    slept, announced = [], False
    for _ in range(rounds):
        slept.append(nap.is_on())
        seconds, announced = ahead_s if announced else other_s, nap.is_on(ahead=1)
        nap.record(drafted and not slept[-1], seconds)
    return slept


def test_it_begins_after_a_few_rounds_without_a_draft_worth_scoring() -> None:
    slept = run(Nap(), 20)
    assert slept == [False] * 3 + [True] * 5 + [False] + [True] * 7 + [False] + [True] * 3


def test_what_is_announced_for_the_next_round_comes_true() -> None:
    nap = Nap()
    for _ in range(80):
        announced = nap.is_on(ahead=1)
        nap.record(False, 1.0)
        if nap._idle > 3:
            assert nap.is_on() == announced


def test_a_draft_worth_scoring_ends_it() -> None:
    nap = Nap()
    run(nap, 20)
    nap.record(True, 1.0)
    assert not any(run(nap, 3))


def test_while_drafts_pay_there_is_none() -> None:
    assert not any(run(Nap(), 100, drafted=True))


def test_streams_that_come_to_an_empty_engine_are_awake() -> None:
    nap = Nap()
    run(nap, 20)
    nap.end()
    assert not any(run(nap, 3))


def test_looks_cost_about_a_percent_however_much_running_ahead_saves() -> None:
    for other_s in (1.05, 1.1, 1.2):
        nap = Nap()
        run(nap, 100, other_s=other_s)
        slept = run(nap, 1000, other_s=other_s)
        looks = slept.count(False)
        assert looks > 0
        assert looks * (other_s - 1) / 1000 < 0.007


def test_after_a_prompt_the_first_round_tells_nothing_of_running_ahead() -> None:
    nap = Nap()
    for _ in range(60):
        nap.interrupt()
        nap.record(False, 5.0)
    assert not nap._seconds[True]
