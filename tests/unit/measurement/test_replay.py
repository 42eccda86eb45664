"""A replay makes the decisions of a real run: the same rounds, drafts and acceptances, at the charged cost."""

from __future__ import annotations

import pytest

import slipstream
from slipstream.core.generator import Answer
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.measurement.replay import replay, round_times
from slipstream.measurement.results import RowCost

COSTS = round_times([RowCost(n, 0.1 + 0.01 * n, 1.0) for n in (1, 2, 3, 4, 6, 8, 12, 16)])
PROMPT = "abc abd abc abe abc abd"


def answer_of(tiny, sampling: Sampling) -> Answer:
    done = slipstream.load(tiny, drafter="none").generate(PROMPT, sampling, Limits(40, ignore_eos=True)).result()
    return Answer(done.text, tuple(done.tokens), "length", done.stats)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=4)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["ngram", "suffix", "suffix(width=3)"])
def test_a_replay_counts_what_the_real_run_counts(tiny, drafter: str, sampling: Sampling) -> None:
    tiny.model.forget_prompts()
    engine = slipstream.load(tiny, drafter=drafter, policy="fixed(4)")
    real = engine.generate(PROMPT, sampling, Limits(40, ignore_eos=True)).result().stats
    again = slipstream.load(tiny, drafter=drafter, policy="fixed(4)")
    stats = replay(again, again.encode(PROMPT), answer_of(tiny, sampling), sampling, COSTS)
    for name in ("num_tokens", "rounds", "num_drafted", "num_accepted"):
        assert getattr(stats, name) == getattr(real, name), name


def test_a_replay_is_charged_the_measured_cost(tiny) -> None:
    """So much that what the host takes, which counts too, is nothing beside it."""
    engine, slow = slipstream.load(tiny, drafter="none"), round_times([RowCost(n, 10.0 + n, 1.0) for n in (1, 2, 4, 8)])
    stats = replay(engine, engine.encode(PROMPT), answer_of(tiny, Sampling()), Sampling(), slow)
    assert stats.tokens_per_s == pytest.approx(1 / 11, rel=0.02)


def test_auto_decides_by_the_charged_cost(tiny) -> None:
    steep = round_times([RowCost(n, 0.1 * n, float(n)) for n in (1, 2, 3, 4, 6, 8, 12, 16)])
    engine = slipstream.load(tiny, drafter="ngram")
    stats = replay(engine, engine.encode(PROMPT), answer_of(tiny, Sampling(temperature=1.5)), Sampling(), steep)
    assert stats.num_drafted <= 8
