"""The engine on a device that runs ahead of the host: drafters look on in passing, and are let in when they pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fakes import AlwaysRight, AlwaysWrong, FakeModel, FakeScores, grow, letters, make_stream, plain_tokens
from slipstream.core.engine import Engine
from slipstream.core.policy import RoundView
from slipstream.core.protocols import ScoreRequest
from slipstream.core.rehearsal import rehearse
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits, Stream
from slipstream.core.tree import DraftTree
from slipstream.measurement.synthetic import forced_acceptance
from slipstream.policy import AutoPolicy, FixedPolicy

FORWARD_S, HOST_S, DRAFT_S = 0.004, 0.0004, 0.001
PROMPT = [3, 1, 4]


class Device(FakeModel):
    """Its forwards take time on a clock, and one that is known to follow starts by itself."""

    def __init__(self) -> None:
        super().__init__(max_rows=128)
        self.info = replace(self.info, runs_ahead=True)
        self.now = 0.0
        self.continued: list[bool] = []  # by round
        self._under_way: float | None = None  # when it will be done

    def clock(self) -> float:
        return self.now

    def score(self, requests: Sequence[ScoreRequest]) -> list[FakeScores]:
        scores = super().score(requests)
        is_plain = sum(r.num_rows for r in requests) == len(requests)
        if self._under_way is None or not is_plain:
            self.now += HOST_S
            self._under_way = self.now + FORWARD_S
        self.now = max(self.now, self._under_way)
        self.continued.append(is_plain and all(r.next_draft == 0 for r in requests))
        self._under_way = self.now + FORWARD_S if self.continued[-1] else None
        return scores


class Slow:
    """A drafter that takes time, by host or on the device."""

    def __init__(self, drafter: AlwaysRight | AlwaysWrong, device: Device, is_free: bool) -> None:
        self.name, self.is_free = "slow", is_free
        self.begin, self.observe, self.end = drafter.begin, drafter.observe, drafter.end
        self._drafter = drafter
        self._device = device
        self.asked_at: list[int] = []  # rounds

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        self._device.now += DRAFT_S * (1 if self.is_free else max(budgets))
        self.asked_at.append(len(self._device.continued))
        return self._drafter.propose(streams, budgets)


def run(drafts: type[AlwaysRight] | type[AlwaysWrong] | None, is_free=True, policy=None, tokens=200, streams=1):
    device = Device()
    drafter = Slow(drafts(model=device), device, is_free) if drafts else None
    engine = Engine(device, letters(32), drafter, policy or AutoPolicy(), clock=device.clock)
    running = [engine.generate(PROMPT, Sampling(), Limits(max_tokens=tokens)) for _ in range(streams)]
    expected = plain_tokens(device.logits, PROMPT, Sampling(), tokens)
    assert all(answer.result().tokens == expected for answer in running)
    return device, drafter


@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("is_free", [True, False], ids=["free", "costly"])
def test_drafts_that_are_never_right_cost_next_to_nothing(is_free, streams):
    plain, _ = run(None, streams=streams)
    device, drafter = run(AlwaysWrong, is_free, streams=streams)
    assert drafter.asked_at
    assert device.now <= 1.025 * plain.now  # 2 % of the time, and one plain round of 200


@pytest.mark.parametrize("is_free", [True, False], ids=["free", "costly"])
def test_drafts_that_are_right_are_let_in_soon(is_free):
    plain, _ = run(None)
    device, _ = run(AlwaysRight, is_free)
    drafted = [rows > 1 for rows in device.rows_by_score[1:]]
    assert drafted.index(True) < 12
    assert device.now < 0.7 * plain.now


def test_a_costly_drafter_is_never_asked_while_the_device_is_at_the_next_round():
    for drafts in (AlwaysWrong, AlwaysRight):
        device, drafter = run(drafts, is_free=False)
        assert not any(device.continued[at - 1] for at in drafter.asked_at)


def test_a_fixed_length_is_drafted_in_every_round():
    device, _ = run(AlwaysRight, policy=FixedPolicy(3), tokens=42)
    assert device.rows_by_score == [len(PROMPT), *[4] * 10, 1]


def test_without_a_drafter_every_round_but_the_first_runs_ahead():
    device, _ = run(None, tokens=50)
    assert device.continued == [False, *[True] * 48, False]


def test_acceptance_by_decree_is_learned_from_what_was_scored():
    device = Device()
    engine = Engine(device, letters(32), AlwaysWrong(model=device), AutoPolicy(), clock=device.clock)
    engine.generate(PROMPT, Sampling(), Limits(max_tokens=200), verifier=forced_acceptance(1.0)).result()
    assert sum(rows > 1 for rows in device.rows_by_score) > 0.5 * device.num_scores


def test_a_clock_that_stands_still_ends_no_stream():
    model = FakeModel()
    for is_free in (True, False):
        drafter = AlwaysRight(model=model, is_free=is_free)
        engine = Engine(model, letters(32), drafter, AutoPolicy(), clock=lambda: 0.0)
        answer = engine.generate(PROMPT, Sampling(), Limits(max_tokens=30)).result()
        assert answer.tokens == plain_tokens(model.logits, PROMPT, Sampling(), 30)


def rehearsed(is_right: bool = True):
    device = Device()
    drafts = AlwaysRight if is_right else AlwaysWrong
    drafter = Slow(drafts(model=device), device, is_free=False)
    return device, drafter, rehearse(device, letters(32), drafter, device.clock)


def test_a_rehearsal_has_every_kind_of_round_and_leaves_nothing_open():
    device, _, rounds = rehearsed()
    assert {one.depth for one in rounds} == {0, 1, 4, 8} and not device.open_sequences
    for one in rounds:
        took_s, draft_s = one.outcome.total_s, one.depth * DRAFT_S
        assert one.outcome.draft_s == (pytest.approx({"slow": draft_s}) if one.depth else {})
        assert took_s == pytest.approx(FORWARD_S + draft_s + (0 if one.outcome.was_announced else HOST_S))
    assert {one.outcome.was_announced for one in rounds if not one.depth} == {True, False}


def test_after_a_rehearsal_the_first_round_drafts():
    device, drafter, rounds = rehearsed()
    policy = AutoPolicy()
    policy.expect({1: FORWARD_S, 64: FORWARD_S}, {})
    policy.rehearsed("slow", rounds)
    drafter.asked_at.clear()
    num_rounds = len(device.continued)
    engine = Engine(device, letters(32), drafter, policy, clock=device.clock)
    engine.generate(PROMPT, Sampling(), Limits(max_tokens=40)).result()
    assert drafter.asked_at[0] == num_rounds + 1  # after the one that reads the prompt


def test_a_draft_that_was_waited_for_is_scored_where_its_rows_cost_nothing():
    """Leaving it out would not bring back the time in which the device waited."""
    _, drafter, rounds = rehearsed(is_right=False)
    policy = AutoPolicy()
    policy.expect({1: FORWARD_S, 64: FORWARD_S}, {})
    policy.rehearsed("slow", rounds)
    stream = make_stream(PROMPT, drafter=drafter)
    grow(stream, [5])
    plan = policy.plan(RoundView([stream], [20], max_nodes=20, can_run_ahead=True))
    plan.receive(plan.asks(), [DraftTree.chain([1, 2], [0.12, 0.12])], 2 * DRAFT_S)
    assert len(plan.keep()[0]) > 0


class GoesOn(Device):
    """Goes on with rounds of a repeated drafter too, and discards what was not asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.drafted: list[int] = []  # by round
        self.num_discarded = 0
        self._next: int | None = None

    def score(self, requests: Sequence[ScoreRequest]) -> list[FakeScores]:
        [request] = requests
        self.drafted.append(len(request.tree))
        self.num_discarded += bool(self._next) and self._next != len(request.tree)
        self._next = request.next_draft if request.tree else None
        return super().score(requests)


@pytest.mark.parametrize("drafts", [AlwaysRight, AlwaysWrong])
def test_the_length_of_a_draft_is_known_a_round_ahead(drafts: type[AlwaysRight] | type[AlwaysWrong]):
    """Of a drafter with which the device goes on by itself: no round that it started is in vain, but at the end."""
    device = GoesOn()
    drafter = Slow(drafts(model=device), device, is_free=False)
    drafter.is_repeated = True
    engine = Engine(device, letters(32), drafter, AutoPolicy(), clock=device.clock)
    answer = engine.generate(PROMPT, Sampling(), Limits(max_tokens=300)).result()
    assert answer.tokens == plain_tokens(device.logits, PROMPT, Sampling(), 300)
    assert device.num_discarded <= 1
    assert len(set(device.drafted) - {0}) > (1 if drafts is AlwaysRight else 0)
