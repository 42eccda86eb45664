"""The engine on a device that runs ahead of the host: drafters look on in passing, and are let in when they pay."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import and_

import pytest

from fakes import AlwaysRight, AlwaysWrong, FakeModel, FakeScores, grow, letters, make_stream, plain_tokens
from slipstream.core.engine import Engine
from slipstream.core.policy import PlainPlan, PlainPolicy, RoundOutcome, RoundView
from slipstream.core.protocols import ScoreRequest
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits, RequestOptions, Stream
from slipstream.core.tree import DraftTree
from slipstream.measurement.synthetic import forced_acceptance
from slipstream.policy import AutoPolicy, FixedPolicy
from slipstream.policy.rehearsal import rehearse

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


class Watching(PlainPolicy):
    """Drafts nothing, and notes how many streams there were and what the device had started."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None]] = []

    def plan(self, view: RoundView) -> PlainPlan:
        self.seen.append((len(view.streams), view.early_draft))
        return super().plan(view)


def test_a_round_that_the_device_started_for_other_streams_is_not_an_early_one():
    device, policy = Device(), Watching()
    engine = Engine(device, letters(32), AlwaysRight(model=device), policy, clock=device.clock)
    expected = plain_tokens(device.logits, PROMPT, Sampling(), 30)
    last = next(i for i, token in enumerate(expected) if i > 4 and token not in expected[:i])
    short = engine.generate(PROMPT, Sampling(), Limits(max_tokens=30, stop_tokens=frozenset([expected[last]])))
    long = engine.generate(PROMPT, Sampling(), Limits(max_tokens=30))
    assert long.result().tokens == expected
    assert len(short.result().tokens) == last + 1
    together, alone = ([early for count, early in policy.seen if count == of] for of in (2, 1))
    assert together[1:] == [0] * (last - 1)
    assert alone[0] is None and alone[1:] == [0] * (28 - last)


def test_rounds_that_wait_for_drafts_which_are_not_made_are_charged():
    """Acceptance by decree shows only in what was scored, so the device has to wait for each of these drafts."""
    plain, _ = run(None, tokens=400)
    device = Device()
    engine = Engine(device, letters(32), AlwaysWrong(model=device), AutoPolicy(), clock=device.clock)
    engine.generate(PROMPT, Sampling(), Limits(max_tokens=400), verifier=forced_acceptance(0.0)).result()
    assert device.continued[2:].count(False) > 10
    assert device.now <= 1.025 * plain.now


def test_acceptance_by_decree_is_learned_from_what_was_scored():
    device = Device()
    engine = Engine(device, letters(32), AlwaysWrong(model=device), AutoPolicy(), clock=device.clock)
    engine.generate(PROMPT, Sampling(), Limits(max_tokens=200), verifier=forced_acceptance(1.0)).result()
    assert sum(rows > 1 for rows in device.rows_by_score) > 0.5 * device.num_scores


@pytest.mark.parametrize("verifier", ["matching", forced_acceptance(1.0)], ids=["matching", "by decree"])
def test_a_device_goes_on_with_drafts_only_where_it_knows_which_tokens_are_taken(verifier):
    told: set[int | None] = set()  # of the next round, in those with drafts

    class Goes(Device):
        def score(self, requests: Sequence[ScoreRequest]) -> list[FakeScores]:
            told.update(request.next_draft for request in requests if request.tree)
            return super().score(requests)

    class Repeated(AlwaysRight):
        is_free, drafts_early = False, True

    device = Goes()
    engine = Engine(device, letters(32), Repeated(model=device), FixedPolicy(3), clock=device.clock)
    engine.generate(PROMPT, Sampling(), Limits(max_tokens=80), verifier=verifier).result()
    assert (3 in told) == (verifier == "matching")


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
        assert took_s == pytest.approx(FORWARD_S + draft_s + (0 if one.outcome.early_draft == 0 else HOST_S))
    assert {one.outcome.early_draft == 0 for one in rounds if not one.depth} == {True, False}


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
    drafter.drafts_early = True
    engine = Engine(device, letters(32), drafter, AutoPolicy(), clock=device.clock)
    answer = engine.generate(PROMPT, Sampling(), Limits(max_tokens=300)).result()
    assert answer.tokens == plain_tokens(device.logits, PROMPT, Sampling(), 300)
    assert device.num_discarded <= 1
    assert len(set(device.drafted) - {0}) > (1 if drafts is AlwaysRight else 0)


class HeadDevice(FakeModel):
    """Drafts and scores by itself, a round ahead of the host, which takes some time for each round too."""

    FORWARD_S, CALL_S, STEP_S, BEGIN_S, CHANGE_S = 0.52e-3, 0.08e-3, 0.035e-3, 0.6e-3, 0.45e-3

    def __init__(self, host_s: float) -> None:
        super().__init__(max_rows=64)
        self.info = replace(self.info, runs_ahead=True)
        self.now = 0.0
        self.host_s = host_s  # of a round with a draft
        self.drafts: list[int] = []  # by round
        self.num_begun = 0  # rounds with drafts that the host started
        self._under_way: tuple[int, float] | None = None  # what it drafted, and when it will have scored it

    def clock(self) -> float:
        return self.now

    def score(self, requests: Sequence[ScoreRequest]) -> list[FakeScores]:
        scores = super().score(requests)
        [request] = requests
        drafted, following = len(request.tree), request.next_draft
        if drafted and self.drafts and self.drafts[-1] not in (0, drafted):
            self.now += self.CHANGE_S
        self.drafts.append(drafted)
        self.now += self.host_s if drafted else 0.2e-3
        if self._under_way is None or self._under_way[0] != drafted:
            self.num_begun += bool(drafted)
            self.now += self.BEGIN_S if drafted else 0.1e-3
            self._under_way = drafted, self.now + self.FORWARD_S
        done = self._under_way[1]
        self._under_way = None
        if following is not None and bool(following) == bool(drafted):
            draft_s = self.CALL_S + self.STEP_S * following if following else 0.0
            self._under_way = following, max(done, self.now) + draft_s + self.FORWARD_S
        self.now = max(self.now, done)
        return scores

    def wait_for_draft(self, steps: int) -> None:
        if self._under_way and self._under_way[0]:
            self.now = max(self.now, self._under_way[1] - self.FORWARD_S)
        else:
            self.now += 0.3e-3 + self.CALL_S + self.STEP_S * steps


class HeadLike:
    """Each token is right with the same chance, if the one before it was."""

    name, is_free, drafts_early = "head", False, True

    def __init__(self, device: HeadDevice, chance: float) -> None:
        self._right = AlwaysRight(model=device)
        self.begin, self.observe, self.end = self._right.begin, self._right.observe, self._right.end
        self._device = device
        self._chance = chance
        self._random = random.Random(0)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        self._device.wait_for_draft(max(budgets))
        return [self._spoilt(tree) for tree in self._right.propose(streams, budgets)]

    def _spoilt(self, tree: DraftTree) -> DraftTree:
        is_right = list(accumulate((self._random.random() < self._chance for _ in tree.tokens), and_))
        tokens = [token if right else (token + 1) % 32 for token, right in zip(tree.tokens, is_right, strict=True)]
        return DraftTree.chain(tokens, [self._chance] * len(tokens))


class Changing(HeadLike):
    """Texts have stretches of 4 to 20 rounds in which tokens are right more often, and others."""

    def __init__(self, device: HeadDevice, chance: float, seed: int) -> None:
        super().__init__(device, chance)
        self._random = random.Random(seed)
        self._mean = chance
        self._left = 0

    def _spoilt(self, tree: DraftTree) -> DraftTree:
        self._left -= 1
        if self._left < 0:
            self._left, self._chance = self._random.randrange(4, 20), self._mean + self._random.choice((-0.2, 0.2))
        return super()._spoilt(tree)


def with_head(
    policy: AutoPolicy | FixedPolicy | None, host_s: float = 0.2e-3, chance: float = 0.0, seed: int | None = None
) -> HeadDevice:
    """Ten answers. Rounds are rehearsed without what the policy takes of the host. `seed`: of a text that changes."""
    device = HeadDevice(min(host_s, 0.35e-3))
    head = HeadLike(device, chance) if seed is None else Changing(device, chance, seed)
    if isinstance(policy, AutoPolicy):
        policy.expect(dict.fromkeys((1, 2, 4, 8), HeadDevice.FORWARD_S) | {16: 1.05 * HeadDevice.FORWARD_S}, {})
        policy.rehearsed("head", rehearse(device, letters(32), head, device.clock))
    device.now, device.host_s, device.drafts = 0.0, host_s, []
    engine = Engine(device, letters(32), head if policy else None, policy, clock=device.clock)
    for _ in range(10):
        engine.generate(PROMPT, Sampling(), Limits(max_tokens=150)).result()
    return device


@pytest.mark.parametrize("host_s", [0.2e-3, 0.5e-3, 0.75e-3, 0.9e-3])
def test_what_the_host_takes_does_not_make_longer_drafts_seem_dear(host_s: float):
    """A round takes as long as the host, if that is longer; a step more is no dearer for it."""
    fixed, auto = with_head(FixedPolicy(4), host_s, 0.7), with_head(AutoPolicy(), host_s, 0.7)
    assert auto.now < 1.03 * fixed.now
    assert sum(auto.drafts) > 3 * len(auto.drafts)


@pytest.mark.parametrize(("chance", "least"), [(0.4, 1.1), (0.5, 1.26)])
def test_what_was_begun_is_not_ended_by_one_bad_stretch(chance: float, least: float):
    """To begin again costs two plain rounds, and so does looking whether that would pay."""
    plain = with_head(None).now
    runs = [with_head(AutoPolicy(), 0.5e-3, chance, seed) for seed in range(5)]
    assert len(runs) * plain / sum(run.now for run in runs) > least
    changes = sum(a != b for run in runs for a, b in pairwise(run.drafts) if a and b)
    assert changes < 0.06 * sum(len(run.drafts) for run in runs)


@pytest.mark.parametrize("host_s", [0.2e-3, 0.5e-3, 0.75e-3])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.2, 0.3])
def test_beginning_with_drafts_that_are_wrong_is_paid_for_before_it_is_tried_again(host_s: float, chance: float):
    plain, auto = with_head(None), with_head(AutoPolicy(), host_s, chance)
    assert any(auto.drafts)
    assert auto.now < plain.now / 0.965


@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("policy", [FixedPolicy(3), AutoPolicy(8)], ids=["fixed", "auto"])
def test_an_answer_that_ends_at_its_limit_has_drafts_to_the_end(policy: FixedPolicy | AutoPolicy, most: int | None):
    """The device may have more under way than is left of the answer."""
    device = HeadDevice(0.2e-3)
    if isinstance(policy, AutoPolicy):
        policy.expect(dict.fromkeys((1, 2, 4, 8, 16), HeadDevice.FORWARD_S), {})
        policy.rehearsed("head", rehearse(device, letters(32), HeadLike(device, 0.9), device.clock))
    for tokens in range(30, 40):
        device.num_begun, device.drafts = 0, []
        engine = Engine(device, letters(32), HeadLike(device, 0.9), policy, clock=device.clock)
        answer = engine.generate(PROMPT, Sampling(), Limits(max_tokens=tokens), options=RequestOptions(max_draft=most))
        assert answer.result().tokens == plain_tokens(device.logits, PROMPT, Sampling(), tokens)
        assert device.num_begun == 1 and len(device.drafts) < tokens - 5
        assert most is None or max(device.drafts) <= most


class FirstWrong(HeadLike):
    """Always right after two drafts."""

    def _spoilt(self, tree: DraftTree) -> DraftTree:
        drafts = [n for n in self._device.drafts if n]
        self._chance = 0.0 if len(drafts) < 2 else 1.0
        return super()._spoilt(tree)


def test_two_wrong_drafts_do_not_end_what_was_begun():
    device, policy = HeadDevice(0.2e-3), AutoPolicy(4)
    policy.expect(dict.fromkeys((1, 2, 4, 8), HeadDevice.FORWARD_S), {})
    policy.rehearsed("head", rehearse(device, letters(32), HeadLike(device, 0.0), device.clock))
    device.drafts, device.num_begun = [], 0
    engine = Engine(device, letters(32), FirstWrong(device, 0.0), policy, clock=device.clock)
    engine.generate(PROMPT, Sampling(), Limits(max_tokens=100)).result()
    assert len(device.drafts) < 60 and device.num_begun == 1


def test_what_the_policy_takes_to_learn_is_part_of_a_round():
    device, seen = HeadDevice(0.2e-3), []

    class SlowToLearn(FixedPolicy):
        def record(self, outcome: RoundOutcome) -> None:
            device.now += 1.0
            seen.append(outcome.total_s)

    engine = Engine(device, letters(32), HeadLike(device, 0.5), SlowToLearn(2), clock=device.clock)
    engine.generate(PROMPT, Sampling(), Limits(max_tokens=20)).result()
    assert seen[0] < 1 and all(1 < total_s < 1.1 for total_s in seen[1:])


def test_a_stream_that_just_fits_the_cache_is_let_in():
    """It then has no room for a draft beyond its end."""
    device = HeadDevice(0.2e-3)
    device.can_open = lambda reserve: reserve <= len(PROMPT) + 40  # type: ignore[method-assign]
    engine = Engine(device, letters(32), HeadLike(device, 0.9), FixedPolicy(3), clock=device.clock)
    answer = engine.generate(PROMPT, Sampling(), Limits(max_tokens=40)).result()
    assert answer.tokens == plain_tokens(device.logits, PROMPT, Sampling(), 40)
