"""Stats: the arithmetic, and what the engine puts in."""

from __future__ import annotations

import json

import pytest

from fakes import AlwaysRight, AlwaysWrong, FakeModel, Sometimes, letters
from slipstream.core.engine import Engine
from slipstream.core.stats import RoundRecord, Stats
from slipstream.core.stream import Limits
from slipstream.policy import FixedPolicy


def record(drafted, accepted, tokens, drafted_depth=None):
    return RoundRecord(drafted, accepted, tokens, drafted_depth or drafted, 0.1, 0.2, 0.05)


def test_acceptance_leaves_the_bonus_out_and_mean_length_counts_it():
    stats = Stats()
    stats.add(record(4, 4, 5))
    stats.add(record(4, 0, 1))
    stats.add(record(0, 0, 1))
    assert stats.acceptance_rate == 4 / 8
    assert stats.mean_accepted_length == 7 / 3
    assert (stats.rounds, stats.num_tokens) == (3, 7)
    assert stats.draft_s == pytest.approx(0.3)
    assert stats.score_s == pytest.approx(0.6)


def test_nothing_done_is_zero_everywhere():
    stats = Stats()
    assert (stats.acceptance_rate, stats.mean_accepted_length, stats.tokens_per_s) == (0, 0, 0)


def test_speed_is_that_of_decoding_alone():
    assert Stats(num_tokens=11, ttft_s=2.0, total_s=4.0).tokens_per_s == 5.0
    assert Stats(num_tokens=1, ttft_s=2.0, total_s=2.0).tokens_per_s == 0.0


def test_depths_are_counted_for_every_round_that_reached_them():
    stats = Stats()
    stats.add(record(3, 2, 3))
    stats.add(record(2, 1, 2))
    stats.add(record(5, 0, 1, drafted_depth=2))  # a tree
    shown = stats.to_dict()
    assert shown["drafted_by_depth"] == [3, 3, 1]
    assert shown["accepted_by_depth"] == [2, 1, 0]
    json.dumps(shown)


def generate(drafter, max_tokens=21, budget=4):
    model = FakeModel()
    engine = Engine(model, letters(), drafter and drafter(model=model), FixedPolicy(budget))
    return engine, engine.generate([3, 1, 4], limits=Limits(max_tokens=max_tokens)).result().stats


def test_plain_decoding_is_one_token_a_round():
    engine, stats = generate(None)
    assert (stats.rounds, stats.num_tokens, stats.num_drafted, stats.mean_accepted_length) == (21, 21, 0, 1.0)
    assert stats.num_prompt_tokens == engine.stats.num_prompt_tokens == 3


def test_everything_accepted():
    _, stats = generate(AlwaysRight)
    assert (stats.rounds, stats.num_drafted, stats.num_accepted, stats.num_tokens) == (5, 16, 16, 21)
    assert stats.acceptance_rate == 1.0
    assert stats.mean_accepted_length == 21 / 5


def test_nothing_accepted():
    _, stats = generate(AlwaysWrong)
    assert stats.acceptance_rate == 0.0
    assert stats.mean_accepted_length == 1.0
    assert stats.num_drafted > 60


def test_the_engines_counts_are_the_sum_of_its_streams():
    model = FakeModel()
    engine = Engine(model, letters(), Sometimes(model=model), FixedPolicy(4))
    answers = [engine.generate([3, i], limits=Limits(max_tokens=10 + i)) for i in range(4)]
    parts = [answer.result().stats for answer in answers]
    for name in ("num_prompt_tokens", "num_tokens", "num_drafted", "num_accepted", "rounds"):
        assert getattr(engine.stats, name) == sum(getattr(part, name) for part in parts)
    assert engine.stats.target_forwards == model.num_scores


def test_a_token_count_is_what_the_stream_took_where_it_stopped_inside_a_draft():
    model = FakeModel()
    first = Engine(model, letters()).generate([3, 1, 4], limits=Limits(max_tokens=8)).result().tokens
    engine = Engine(model, letters(), AlwaysRight(model=model), FixedPolicy(7))
    stats = engine.generate([3, 1, 4], limits=Limits(20, stop_tokens=frozenset({first[3]}))).result().stats
    ends = first.index(first[3]) + 1
    assert stats.num_tokens == ends
    assert stats.num_accepted <= ends - 1
