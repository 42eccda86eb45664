"""Nap: when it begins and ends, and how often there is a look."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from slipstream.core.nap import Nap


def run(nap: Nap, found: Iterable[bool], look_s: float = 1.0, waited_s: float = 1.1, right: bool = True) -> list[str]:
    """What each round was: `awake`, where a draft was scored if one was found; asleep, with or without a `look`."""
    seen = []
    for has_draft in found:
        kind = "awake" if not nap.is_on else "look" if nap.looks else "asleep"
        seconds = waited_s if not nap.runs_ahead else look_s if kind == "look" else 1.0
        if kind != "asleep":
            nap.heed(has_draft)
        num_drafted = 3 if has_draft and kind == "awake" else 0
        nap.record(num_drafted, num_drafted if right else 0, seconds)
        seen.append(kind)
    return seen


def nothing(rounds: int) -> list[bool]:
    return [False] * rounds


def test_the_first_round_has_a_look_and_then_every_other() -> None:
    assert run(Nap(runs_ahead=True), nothing(5)) == ["look", "asleep"] * 2 + ["look"]


def test_a_look_that_finds_something_ends_it_with_the_next_round() -> None:
    assert run(Nap(runs_ahead=True), [True] * 20) == ["look"] + ["awake"] * 19


@pytest.mark.parametrize(("waited_s", "rounds"), [(1.05, 3), (1.2, 2), (1.6, 1)])
def test_it_begins_after_a_few_rounds_without_a_draft_the_sooner_the_more_they_cost(waited_s, rounds) -> None:
    nap = Nap(runs_ahead=True)
    run(nap, nothing(20), waited_s=waited_s)
    run(nap, [True] * 4, waited_s=waited_s)
    seen = run(nap, nothing(6), waited_s=waited_s)
    assert seen == ["awake"] * rounds + (["asleep", "look"] * 3)[: 6 - rounds]


def test_drafters_that_were_wrong_are_not_waited_for() -> None:
    nap = Nap(runs_ahead=True)
    assert run(nap, [True, True, False, False, False], right=False) == ["look", "awake", "awake", "asleep", "look"]


def test_the_last_round_before_it_lets_the_device_go_on() -> None:
    nap = Nap(runs_ahead=True)
    run(nap, [True] * 10)
    for _ in range(3):
        assert not nap.is_on and not nap.runs_ahead
        nap.heed(found=False)
        announced = nap.is_on  # known before the round is scored
        nap.record(0, 0, seconds=1.1)
    assert announced and nap.runs_ahead


def test_a_device_that_does_not_run_ahead_has_none() -> None:
    assert run(Nap(runs_ahead=False), nothing(20)) == ["awake"] * 20


def test_whoever_is_new_gets_a_look() -> None:
    nap = Nap(runs_ahead=True)
    run(nap, nothing(300), look_s=1.2)
    nap.interrupt()
    assert run(nap, nothing(3), look_s=1.2) == ["look", "asleep", "asleep"]


@pytest.mark.parametrize("look_s", [1.0, 1.05, 1.1, 1.2])
def test_looks_cost_half_a_percent_at_most(look_s: float) -> None:
    nap = Nap(runs_ahead=True)
    run(nap, nothing(100), look_s)
    looks = run(nap, nothing(1000), look_s).count("look")
    assert looks > 0
    assert looks * (look_s - 1) / 1000 < 0.007


def test_after_a_prompt_the_first_round_tells_nothing_of_running_ahead() -> None:
    nap = Nap(runs_ahead=True)
    for _ in range(60):
        nap.interrupt()
        nap.record(0, 0, seconds=5.0)
    assert not nap._seconds["ahead"] and not nap._seconds["look"]
