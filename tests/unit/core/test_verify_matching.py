"""The matching verifier gives the text of plain decoding, whatever is drafted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeScores, hashed_logits, plain_tokens
from slipstream.core.sampling import History, Sampling
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree, TreeBuilder
from slipstream.core.verify import SamplingState, Verdict, verify_matching, verify_rejection

VOCAB = 6

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.8]),
    logit_bias=st.sampled_from([{}, {2: 1.5}]),
    seed=st.integers(0, 2**64 - 1),
)


def random_tree(random: np.random.Generator, nodes: int) -> DraftTree:
    builder = TreeBuilder()
    for _ in range(nodes):
        builder.add(int(random.integers(ROOT, len(builder))), int(random.integers(VOCAB)))
    return builder.build()


def generate(logits, prompt, sampling, verifier, draft, count):
    """A whole answer, round by round, with `draft()` as the drafter."""
    tokens, history = list(prompt), History(prompt)
    while len(tokens) - len(prompt) < count:
        tree, before = draft(), list(tokens)
        scores = FakeScores(lambda node, tree=tree, before=before: logits(before + tree.path_tokens(node)))
        verdict = verifier(tree, scores, SamplingState(sampling, history, len(tokens) - len(prompt)))
        gained = verdict.tokens(tree)
        tokens += gained
        history.extend(gained)
    return tokens[len(prompt) :][:count]


@settings(max_examples=100)
@given(
    samplings, st.integers(0, 10**6), st.integers(0, 12), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4)
)
def test_any_trees_give_the_tokens_of_plain_decoding(sampling, seed, nodes, prompt):
    logits = hashed_logits(VOCAB, seed % 50)
    random = np.random.default_rng(seed)
    answer = generate(logits, prompt, sampling, verify_matching, lambda: random_tree(random, nodes), 24)
    assert answer == plain_tokens(logits, prompt, sampling, 24)


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_rejection_is_matching_where_nothing_is_sampled(seed):
    logits, sampling = hashed_logits(VOCAB, seed % 50), Sampling(frequency_penalty=0.5)
    random = np.random.default_rng(seed)
    answer = generate(logits, [1], sampling, verify_rejection, lambda: random_tree(random, 6), 24)
    assert answer == plain_tokens(logits, [1], sampling, 24)


def constant_scores(*best: int) -> FakeScores:
    """Row `node` (ROOT first) prefers best[node + 1]."""
    return FakeScores(lambda node: np.eye(VOCAB, dtype=np.float32)[best[node + 1]] * 10)


def greedy() -> SamplingState:
    return SamplingState(Sampling(), History([0]), 0)


def test_an_empty_draft_gives_the_targets_token():
    assert verify_matching(EMPTY_TREE, constant_scores(4), greedy()) == Verdict((), 4)


def test_a_draft_that_is_wholly_right_ends_with_the_bonus_token():
    tree = DraftTree.chain([1, 2])
    assert verify_matching(tree, constant_scores(1, 2, 3), greedy()) == Verdict((0, 1), 3)


def test_a_wrong_first_token_ends_the_draft_even_if_the_rest_agrees():
    tree = DraftTree.chain([5, 2])
    assert verify_matching(tree, constant_scores(1, 2, 3), greedy()) == Verdict((), 1)


def test_the_second_sibling_is_found():
    tree = DraftTree((1, 2, 3, 4), (-1, -1, 0, 1))
    verdict = verify_matching(tree, constant_scores(2, 0, 4, 0, 5), greedy())
    assert verdict == Verdict((1, 3), 5)
    assert verdict.tokens(tree) == [2, 4, 5]


@pytest.mark.parametrize("position", [0, 7])
def test_depth_moves_the_position_of_the_noise(position):
    """Two equal rows in a row draw two different noises: each with its own position."""
    row = np.zeros(VOCAB, np.float32)
    sampling = Sampling(temperature=1.0, seed=11)
    first = verify_matching(
        EMPTY_TREE, FakeScores(lambda node: row), SamplingState(sampling, History(), position)
    ).next_token
    second = verify_matching(
        EMPTY_TREE, FakeScores(lambda node: row), SamplingState(sampling, History(), position + 1)
    ).next_token
    verdict = verify_matching(
        DraftTree.chain([first]), FakeScores(lambda n: row), SamplingState(sampling, History(), position)
    )
    assert verdict == Verdict((0,), second)
