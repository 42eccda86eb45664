"""The noise: the same everywhere, uniform, and pruned without a trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from slipstream.core.noise import (
    MOST_NOISE,
    Domain,
    coupled_argmax,
    gumbel,
    gumbel_of,
    hash32,
    stream_key,
    stream_keys,
    token_noise,
    uniform,
)

TOKENS = np.arange(5000, dtype=np.int64)


def test_the_numbers_never_change():
    """Texts of a seed must be the same in every release: these are SplitMix64's."""
    assert hash32(0, 0, np.array([0, 1, 49151])).tolist() == [int(n) for n in _reference(0, 0, [0, 1, 49151], 0)]
    assert hash32(7, 3, np.array([5]), Domain.DRAFT).tolist() == [int(n) for n in _reference(7, 3, [5], 1)]


def test_noise_of_one_token_is_that_among_all():
    assert [token_noise(7, 3, token) for token in (0, 1, 4999)] == pytest.approx(gumbel(7, 3, TOKENS)[[0, 1, 4999]])


def test_keys_of_many_streams_are_those_of_each():
    streams = [(0, 0), (7, 3), (2**64 - 1, 10**6), (2**63 + 5, 1)]
    seeds, positions = (np.array(values, np.uint64) for values in zip(*streams, strict=True))
    assert stream_keys(seeds, positions).tolist() == [stream_key(*stream) for stream in streams]


def _reference(seed, position, tokens, domain):
    """The same generator in plain integers."""
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def mix(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    key = mix((seed + golden) & mask)
    key = mix((key + position * golden) & mask)
    key = mix((key + domain * golden) & mask)
    return [mix((key + (token + 1) * golden) & mask) >> 32 for token in tokens]


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.lists(st.integers(0, 200_000), min_size=1, max_size=20))
def test_a_number_depends_on_its_own_token_alone(seed, position, tokens):
    together = hash32(seed, position, np.array(tokens))
    alone = [int(hash32(seed, position, np.array([token]))[0]) for token in tokens]
    assert together.tolist() == alone == _reference(seed, position, tokens, 0)


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.integers(0, 50))
def test_uniform_lies_strictly_between_0_and_1(seed, position, index):
    assert 0.0 < uniform(seed, position, index) < 1.0


@pytest.mark.parametrize("domain", list(Domain))
def test_numbers_are_uniform_over_tokens_positions_and_seeds(domain):
    few = np.arange(20, dtype=np.int64)
    over_tokens = hash32(1, 2, TOKENS, domain)
    over_positions = np.concatenate([hash32(1, position, few, domain) for position in range(1000)])
    over_seeds = np.concatenate([hash32(seed, 2, few, domain) for seed in range(1000)])
    for numbers in (over_tokens, over_positions, over_seeds):
        assert stats.kstest(numbers / 2**32, "uniform").pvalue > 1e-3


def test_coins_are_uniform():
    coins = [uniform(seed, 0, turn) for seed in range(1000) for turn in range(3)]
    assert stats.kstest(coins, "uniform").pvalue > 1e-3


def test_neighbouring_positions_seeds_and_domains_are_not_correlated():
    base = gumbel(1, 2, TOKENS)
    for other in (
        gumbel(1, 3, TOKENS),
        gumbel(2, 2, TOKENS),
        gumbel(1, 2, TOKENS, Domain.DRAFT),
        gumbel(1, 2, TOKENS + 1),
    ):
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.05


def test_gumbel_noise_has_the_gumbel_distribution_and_is_always_finite():
    assert stats.kstest(gumbel(5, 0, TOKENS), stats.gumbel_r.cdf).pvalue > 1e-3
    extremes = gumbel_of(np.array([0, 2**32 - 1], np.uint64))
    assert extremes[1] < MOST_NOISE < extremes[1] + 0.001
    assert np.isfinite(extremes).all()
    assert extremes[0] < -3 < 20 < extremes[1]


def brute_force(z, tokens, seed, position):
    return int(tokens[int((z + gumbel(seed, position, tokens)).argmax())])


SHAPES = {
    "flat": lambda r, n: np.zeros(n),
    "gentle": lambda r, n: r.standard_normal(n),
    "wide": lambda r, n: r.standard_normal(n) * 12,
    "one peak": lambda r, n: np.where(np.arange(n) == r.integers(n), 25.0, r.standard_normal(n)),
    "just below the bound": lambda r, n: np.where(np.arange(n) == r.integers(n), 0.0, -8.0 - r.random(n) * 1e-3),
    "far below the bound": lambda r, n: np.where(np.arange(n) == r.integers(n), 0.0, -9.0 - 3 * r.random(n)),
    "with -inf": lambda r, n: np.where(r.random(n) < 0.5, r.standard_normal(n) * 5, -np.inf),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_coupled_argmax_equals_the_argmax_over_all_tokens(shape):
    random = np.random.default_rng(3)
    pruned_wins = 0
    for trial in range(400):
        size = int(random.integers(2, 3000))
        z = SHAPES[shape](random, size)
        if not np.isfinite(z).any():
            continue
        tokens = np.arange(size)
        expected = brute_force(z, tokens, trial, trial % 7)
        assert coupled_argmax(z, tokens, trial, trial % 7) == expected
        pruned_wins += z[expected] < z.max() - 8.0
    if shape in ("just below the bound", "far below the bound"):
        assert pruned_wins > 0  # a token beyond the bound did win: the test reaches the pruning


def test_coupled_argmax_over_a_subset_uses_the_tokens_own_noise():
    tokens = np.array([3, 17, 90])
    z = np.zeros(3)
    assert [coupled_argmax(z, tokens, seed, 0) for seed in range(50)] == [
        brute_force(z, tokens, seed, 0) for seed in range(50)
    ]


def test_ties_go_to_the_lower_id():
    z = np.array([1.0, 1.0, 1e30, 1e30])  # noise is lost in the rounding of such numbers
    assert coupled_argmax(z, np.arange(4), 0, 0) == 2


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
def test_sampling_frequencies_are_those_of_softmax(scale):
    z = np.random.default_rng(1).standard_normal(12) * scale
    tokens = np.arange(12)
    counts = np.bincount([coupled_argmax(z, tokens, seed, 5) for seed in range(6000)], minlength=12)
    expected = np.exp(z - z.max())
    expected *= 6000 / expected.sum()
    common = expected >= 5
    observed = [*counts[common], counts[~common].sum()]
    wanted = [*expected[common], expected[~common].sum()]
    keep = [i for i, w in enumerate(wanted) if w > 0]
    assert stats.chisquare([observed[i] for i in keep], [wanted[i] for i in keep]).pvalue > 1e-4
