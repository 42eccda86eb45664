"""Sampling settings, each against the simplest implementation of itself."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeScores
from slipstream.core.noise import Domain, gumbel
from slipstream.core.sampling import History, Sampling, candidates, distribution, draw, likeliest, processed, sample
from slipstream.core.tree import ROOT, DraftTree
from slipstream.core.verify import SamplingState
from slipstream.errors import NonFiniteLogitsError, UsageError


def random_row(seed: int, size: int = 40, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


# -- filters ------------------------------------------------------------------------------------------------------


def brute_distribution(row, sampling) -> dict[int, float]:
    """Sorted lists and plain floats: temperature, top-k, top-p, min-p in this order."""
    z = {i: float(x) / sampling.temperature for i, x in enumerate(row)}
    if sampling.top_k:
        z = dict(sorted(z.items(), key=lambda item: -item[1])[: sampling.top_k])
    best = max(z.values())
    total = math.fsum(math.exp(x - best) for x in z.values())
    p = {i: math.exp(x - best) / total for i, x in z.items()}
    if sampling.top_p < 1:
        kept, reached = {}, 0.0
        for i, x in sorted(p.items(), key=lambda item: -item[1]):
            if reached >= sampling.top_p:
                break
            kept[i] = x
            reached += x
        p = kept
    if sampling.min_p:
        p = {i: x for i, x in p.items() if x >= sampling.min_p * max(p.values())}
    total = math.fsum(p.values())
    return {i: x / total for i, x in p.items()}


FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 1000},
    {"top_p": 0.05},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 0.9},
    {"top_k": 10, "top_p": 0.8},
    {"top_k": 10, "min_p": 0.1},
    {"top_p": 0.95, "min_p": 0.2},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.02},
]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters_keep_what_the_definition_keeps(filters, temperature):
    sampling = Sampling(temperature=temperature, **filters)
    for seed in range(20):
        row = random_row(seed)
        expected = brute_distribution(row, sampling)
        p = distribution(row, sampling)
        assert set(np.flatnonzero(p).tolist()) == set(expected)
        np.testing.assert_allclose([p[i] for i in expected], list(expected.values()), rtol=1e-9)
        assert p.sum() == pytest.approx(1.0)


@given(st.integers(0, 10**6), st.floats(0.01, 0.999), st.integers(2, 3000), st.floats(0.1, 10))
def test_top_p_is_the_smallest_set_that_reaches_it(seed, top_p, size, scale):
    row = random_row(seed, size, scale)
    p = distribution(row, Sampling(temperature=1.0))
    kept = candidates(row, Sampling(temperature=1.0, top_p=top_p)).tokens
    share = p[kept]
    assert share.sum() >= top_p * (1 - 1e-9)
    assert share.sum() - share.min() < top_p * (1 + 1e-9)
    left_out = np.delete(p, kept)
    assert left_out.size == 0 or left_out.max() <= share.min()


def test_candidates_come_in_the_order_of_their_ids():
    left = candidates(random_row(3), Sampling(temperature=1.0, top_k=20, top_p=0.95, min_p=0.001))
    assert (np.diff(left.tokens) > 0).all()


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_a_sampled_token_is_one_of_the_candidates(filters):
    for seed in range(50):
        sampling = Sampling(temperature=1.3, seed=seed, **filters)
        row = random_row(seed)
        assert sample(row, sampling, position=seed) in candidates(row, sampling).tokens


@pytest.mark.parametrize("temperature", [0.05, 0.8, 1.7, 30.0])
def test_what_is_left_out_as_unreachable_never_wins(temperature):
    """Among thousands of tokens, many of them too far below the best to win with any noise."""
    tokens = np.arange(5000)
    for seed in range(60):
        row = random_row(seed, len(tokens), 8.0)
        values = row.astype(np.float64) / temperature + gumbel(seed, seed % 5, tokens)
        assert sample(row, Sampling(temperature=temperature, seed=seed), seed % 5) == int(values.argmax())


def test_filters_never_change_the_winner_they_keep():
    """Coupled noise belongs to the token: a token that wins among all wins among fewer."""
    for seed in range(200):
        row = random_row(seed)
        among_all = sample(row, Sampling(temperature=1.0, seed=seed), 0)
        filtered = Sampling(temperature=1.0, seed=seed, top_k=5)
        if among_all in candidates(row, filtered).tokens:
            assert sample(row, filtered, 0) == among_all


def test_greedy_takes_the_first_of_the_best():
    assert sample(np.array([1, 5, 5, 2], np.float32), Sampling(), 0) == 1
    assert distribution(np.array([1, 5, 5, 2], np.float32), Sampling()).tolist() == [0, 1, 0, 0]


@given(st.lists(st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0]), min_size=1))
def test_the_likeliest_is_the_first_of_the_largest_whatever_the_signs(logits):
    row = np.array(logits, np.float32)
    assert likeliest(row) == int(row.argmax())


def test_a_very_low_temperature_is_nearly_greedy():
    row = random_row(1)
    assert {sample(row, Sampling(temperature=1e-4, seed=s), 0) for s in range(100)} == {int(row.argmax())}


def test_the_draw_depends_on_seed_and_position():
    row = np.zeros(1000, np.float32)
    sampling = Sampling(temperature=1.0, seed=1)
    assert sample(row, sampling, 0) == sample(row, sampling, 0)
    assert len({sample(row, sampling, position) for position in range(20)}) > 15
    assert len({sample(row, Sampling(temperature=1.0, seed=s), 0) for s in range(20)}) > 15


def test_draw_never_gives_a_token_without_probability():
    p = np.array([0.0, 0.3, 0.0, 0.7])
    drawn = Counter(draw(p, seed, 0, Domain.DRAFT) for seed in range(3000))
    assert set(drawn) == {1, 3}
    assert drawn[1] / 3000 == pytest.approx(0.3, abs=0.04)


# -- penalties and bias -------------------------------------------------------------------------------------------

PROMPT, ANSWER = [1, 2, 2], [3, 3, 3, 1]
PENALTIES = [
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.5},
    {"presence_penalty": 0.9},
    {"frequency_penalty": 0.4},
    {"frequency_penalty": -0.4},
    {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.7},
    {"logit_bias": {0: 5.0, 3: -100.0}},
    {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.7, "logit_bias": {3: 1.0}},
]


def brute_processed(row, sampling, prompt, answer):
    out = [float(x) for x in row]
    for token in set(prompt) | set(answer):
        r = sampling.repetition_penalty
        out[token] = out[token] / r if out[token] > 0 else out[token] * r
    for token, count in Counter(answer).items():
        out[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    for token, bias in sampling.logit_bias.items():
        out[token] += bias
    return out


@pytest.mark.parametrize("path", [(), (3,), (5, 5, 0)], ids=str)
@pytest.mark.parametrize("settings", PENALTIES, ids=str)
def test_penalties_and_bias_follow_the_definition(settings, path):
    sampling = Sampling(**settings)
    history = History(PROMPT)
    history.extend(ANSWER)
    row = random_row(4, 8)
    before = row.copy()
    expected = brute_processed(row, sampling, PROMPT, [*ANSWER, *path])
    np.testing.assert_allclose(processed(row, sampling, history, path), expected, rtol=1e-5)
    np.testing.assert_array_equal(row, before)


def test_a_path_leaves_the_history_as_it_was():
    sampling = Sampling(frequency_penalty=1.0)
    history = History([])
    history.extend([1])
    row = np.zeros(4, np.float32)
    processed(row, sampling, history, (1, 2))
    assert processed(row, sampling, history, ()).tolist() == [0, -1, 0, 0]


def test_presence_and_frequency_leave_the_prompt_alone():
    row = np.ones(4, np.float32)
    sampling = Sampling(presence_penalty=1.0, frequency_penalty=1.0)
    assert processed(row, sampling, History([1, 2]), ()).tolist() == row.tolist()


def test_a_tree_node_counts_the_tokens_on_its_own_path_only():
    tree = DraftTree((5, 6, 5), (-1, -1, 1))
    history = History([0])
    history.extend([5])
    choice = SamplingState(Sampling(frequency_penalty=1.0), history, 1)
    scores = FakeScores(lambda node: np.zeros(8, np.float32))
    assert choice.row(tree, scores, ROOT)[[5, 6]].tolist() == [-1, 0]
    assert choice.row(tree, scores, 0)[[5, 6]].tolist() == [-2, 0]
    assert choice.row(tree, scores, 1)[[5, 6]].tolist() == [-1, -1]
    assert choice.row(tree, scores, 2)[[5, 6]].tolist() == [-2, -1]


def test_a_row_may_lack_the_tokens_that_are_biased_or_penalised():
    """A draft model may say only the first ids of the vocabulary."""
    sampling = Sampling(logit_bias={9: 5.0}, repetition_penalty=2.0, frequency_penalty=1.0)
    history = History([1, 9])
    history.extend([2, 9])
    assert processed(np.ones(4, np.float32), sampling, history, ()).tolist() == [1, 0.5, -0.5, 1]


def test_settings_that_change_nothing_return_the_row_itself():
    row = random_row(0)
    assert processed(row, Sampling(temperature=0.7, top_k=3), History([1]), ()) is row


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": 1e-310},
        {"temperature": "0.5"},
        {"temperature": None},
        {"temperature": True},
        {"top_k": 1.5},
        {"top_k": "3"},
        {"top_k": True},
        {"logit_bias": [3]},
        {"logit_bias": None},
        {"seed": 1.0},
        {"seed": None},
        {"repetition_penalty": 1e-310},
        {"repetition_penalty": math.inf},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.0},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -1.0},
        {"presence_penalty": 101.0},
        {"frequency_penalty": -101.0},
        {"frequency_penalty": math.nan},
        {"seed": -1},
        {"seed": 1 << 64},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_name(settings):
    with pytest.raises(UsageError, match=rf"^{next(iter(settings))} is .*expected"):
        Sampling(**settings)


@pytest.mark.parametrize(
    ("bias", "field"),
    [
        ({3: math.inf}, "logit_bias of token 3"),
        ({3: -math.inf}, "logit_bias of token 3"),
        ({3: math.nan}, "logit_bias of token 3"),
        ({"4": "x"}, "logit_bias of token 4"),
        ({4: 1e39}, "logit_bias of token 4"),
        ({1.5: 1.0}, "a token id of logit_bias"),
        ({-1: 1.0}, "a token id of logit_bias"),
        ({"x": 1.0}, "a token id of logit_bias"),
    ],
    ids=str,
)
def test_a_bias_that_no_logit_could_bear_is_refused(bias, field):
    with pytest.raises(UsageError, match=f"^{field} is .*expected"):
        Sampling(logit_bias=bias)


def test_numbers_of_numpy_become_plain_ones():
    sampling = Sampling(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(2**64 - 1), logit_bias={"7": 1})
    assert sampling == Sampling(temperature=0.5, top_k=3, seed=2**64 - 1, logit_bias={7: 1.0})
    assert [type(v) for v in (sampling.temperature, sampling.top_k, sampling.seed)] == [float, int, int]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 0.7, "top_k": 3},
        {"temperature": 1, "top_p": 0.5},
        {"temperature": 1, "min_p": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf])
@pytest.mark.parametrize("choose", [lambda row, s: sample(row, s, 0), distribution], ids=["sample", "distribution"])
def test_logits_that_are_no_numbers_are_an_error(choose, value, settings):
    if choose is distribution and not settings:
        settings = {"temperature": 1.0}
    with pytest.raises(NonFiniteLogitsError, match="largest logit is"):
        choose(np.full(8, value, np.float32), Sampling(**settings))
