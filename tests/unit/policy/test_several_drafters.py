"""A stream with several drafters: whom to ask, and whose tokens to score, is one choice by tokens per second."""

from __future__ import annotations

from dataclasses import dataclass

from fakes import FakeDrafter, make_stream
from slipstream.core.policy import RoundOutcome, RoundView
from slipstream.core.stream import Observation
from slipstream.core.team import DrafterTeam
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree
from slipstream.core.verify import Verdict
from slipstream.policy import AutoPolicy
from slipstream.policy.constants import CREDIT

ROW_S = {1: 0.0100, 2: 0.0101, 4: 0.0102, 8: 0.0104, 16: 0.0108, 32: 0.0116}
TARGET = list(range(100, 140))  # what the target says after any prefix


@dataclass
class Lookup(FakeDrafter):
    """Right or wrong for as many tokens as it is told, at a confidence."""

    depth: int = 4
    is_right: bool = True
    sure: float = 0.95

    def draft(self, budget):
        tokens = TARGET if self.is_right else TARGET[::-1]
        return DraftTree.chain(tokens[: min(self.depth, budget)], [self.sure] * min(self.depth, budget))


class World:
    def __init__(self, free: Lookup, costly: Lookup, step_s: float = 0.001, plan_s: float = 0.0) -> None:
        self.policy = AutoPolicy()
        self.policy.expect(ROW_S, {costly.name: {1: step_s, 8: 1.1 * step_s}})
        self.step_s, self.plan_s = step_s, plan_s
        self.stream = make_stream([1], drafter=DrafterTeam([free, costly]))
        self.num_asked = {free.name: 0, costly.name: 0}
        self.scored: list[DraftTree] = []

    def run(self, rounds: int):
        for _ in range(rounds):
            plan, draft_s = self.policy.plan(RoundView([self.stream], [64], 256)), {}
            while asks := plan.asks():
                trees = [ask.drafter.draft(ask.budget) for ask in asks]
                for ask, tree in zip(asks, trees, strict=True):
                    self.num_asked[ask.drafter.name] += 1
                    draft_s[ask.drafter.name] = 0.00001 if ask.drafter.is_free else self.step_s * max(len(tree), 1)
                plan.receive(asks, trees, sum(draft_s[ask.drafter.name] for ask in asks))
            (tree,) = plan.keep()
            path, node = [], -1
            while (child := tree.child(node, TARGET[len(path)])) is not None:
                path.append(node := child)
            seconds = 0.0098 + 0.0001 * (1 + len(tree))
            self.policy.record(
                RoundOutcome(
                    1 + len(tree),
                    1,
                    draft_s,
                    seconds,
                    seconds + sum(draft_s.values()),
                    has_prefill=False,
                    early_draft=None,
                    observations=[Observation(self.stream, tree, Verdict(tuple(path), TARGET[len(path)]))],
                    plan=plan,
                    plan_s=self.plan_s * len(draft_s),
                )
            )
            self.scored.append(tree)
        return self


def test_where_the_free_one_offers_as_much_the_costly_one_is_left_alone():
    world = World(Lookup(name="suffix", is_free=True, depth=12), Lookup(name="model", is_free=False, depth=12)).run(200)
    assert world.num_asked["suffix"] > 190
    assert world.num_asked["model"] < 20
    assert len(world.scored[-1]) == 12


def test_where_the_free_one_is_wrong_the_costly_one_drafts():
    free = Lookup(name="suffix", is_free=True, is_right=False, sure=0.6)
    world = World(free, Lookup(name="model", is_free=False, depth=12)).run(200)
    assert world.num_asked["model"] > 150
    assert sum(t.child(ROOT, TARGET[0]) is not None for t in world.scored[-50:]) > 40


def test_where_the_free_one_proposes_nothing_the_costly_one_drafts():
    free = Lookup(name="suffix", is_free=True, depth=0)
    world = World(free, Lookup(name="model", is_free=False, depth=8)).run(200)
    assert world.num_asked["model"] > 150
    assert len(world.scored[-1]) >= 6


def test_where_neither_is_right_2_percent_of_the_time_is_lost_at_most():
    free = Lookup(name="suffix", is_free=True, is_right=False)
    world = World(free, Lookup(name="model", is_free=False, is_right=False), step_s=0.004).run(200)
    asked_before = world.num_asked["model"]
    world.run(200)
    lost_s = 0.0001 * sum(map(len, world.scored[-200:])) + 0.004 * (world.num_asked["model"] - asked_before)
    assert lost_s <= (0.02 * 200 + 2 * CREDIT) * ROW_S[1]


def test_two_drafts_of_one_stream_are_one_tree():
    free = Lookup(name="suffix", is_free=True, depth=1, sure=0.9)
    costly = Lookup(name="model", is_free=False, depth=8)
    world = World(free, costly).run(100)
    both = [tree for tree in world.scored if len(tree) > 1]
    assert both and all(tree.is_chain for tree in both)  # they agree on the first token, so it is scored once
    assert EMPTY_TREE not in world.scored[-20:]


def test_a_free_one_that_adds_nothing_is_asked_rarely_where_the_policy_takes_time_for_it():
    def asked(plan_s):
        free, costly = Lookup(name="suffix", is_free=True, depth=1), Lookup(name="model", is_free=False, depth=8)
        return World(free, costly, plan_s=plan_s).run(200).num_asked

    assert asked(0.0)["suffix"] > 190
    assert asked(0.001)["suffix"] < 50 and asked(0.001)["model"] > 150
