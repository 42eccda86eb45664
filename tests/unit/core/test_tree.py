"""DraftTree: what it refuses, and what it derives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import tree_of
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree, TreeBuilder


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 12, vocab: int = 4) -> DraftTree:
    builder = TreeBuilder()
    for _ in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.integers(ROOT, len(builder) - 1))
        builder.add(parent, draw(st.integers(0, vocab - 1)), draw(st.floats(0, 1)))
    return builder.build()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": (1, 2), "parents": (-1,)}, "2 tokens has 1 parents"),
        ({"tokens": (1,), "parents": (0,)}, "parents must come before"),
        ({"tokens": (1, 2), "parents": (-1, 1)}, "parents must come before"),
        ({"tokens": (1,), "parents": (-2,)}, "parents must come before"),
        ({"tokens": (5, 5), "parents": (-1, -1)}, "siblings must be distinct"),
        ({"tokens": (1, 5, 5), "parents": (-1, 0, 0)}, "siblings must be distinct"),
        ({"tokens": (1, 2), "parents": (-1, 0), "confidence": (0.5,)}, "confidence has 1"),
        ({"tokens": (1,), "parents": (-1,), "proposals": (None, None)}, "proposals has 2"),
    ],
)
def test_a_malformed_tree_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        DraftTree(**fields)


def test_the_same_token_may_follow_different_nodes():
    tree = DraftTree((5, 6, 5, 5), (-1, -1, 0, 1))
    assert tree.child(0, 5) == 2
    assert tree.child(1, 5) == 3
    assert tree.child(ROOT, 7) is None


def test_an_empty_tree_is_a_legal_chain():
    assert not EMPTY_TREE
    assert len(EMPTY_TREE) == 0
    assert EMPTY_TREE.is_chain
    assert EMPTY_TREE.depths() == []
    assert EMPTY_TREE.path(ROOT) == []
    assert EMPTY_TREE.keep([]) == EMPTY_TREE


def test_a_chain_follows_itself():
    chain = DraftTree.chain([7, 8, 7], [0.9, 0.8, 0.7])
    assert chain.parents == (-1, 0, 1)
    assert chain.is_chain
    assert chain.depths() == [1, 2, 3]
    assert chain.path_tokens(2) == [7, 8, 7]


def test_a_chain_may_be_of_any_length():
    chain = DraftTree.chain(range(200))
    assert chain.is_chain and chain.depths() == list(range(1, 201)) and len(chain.path(199)) == 200
    for node in (ROOT, 62, 63, 198):
        assert chain.child(node, node + 1) == node + 1 and chain.child(node, 500) is None
    assert chain.child(199, 200) is None


def test_a_builder_merges_shared_beginnings_in_order():
    tree = tree_of([1, 2, 3], [1, 4], [5], [1, 2, 6])
    assert tree.tokens == (1, 2, 3, 4, 5, 6)
    assert tree.parents == (-1, 0, 1, 0, -1, 1)
    assert not tree.is_chain


def test_keep_renumbers_and_carries_confidence_and_proposals():
    q = np.array([0.5, 0.5])
    tree = DraftTree((1, 2, 3), (-1, -1, 1), (0.1, 0.2, 0.3), (None, q, None))
    kept = tree.keep([2, 1, 2])
    assert (kept.tokens, kept.parents, kept.confidence) == ((2, 3), (-1, 0), (0.2, 0.3))
    assert kept.proposals[0] is q


def test_keep_refuses_a_node_without_its_parent():
    with pytest.raises(ValueError, match=r"nodes \[2\] are kept without"):
        DraftTree((1, 2, 3), (-1, 0, 1)).keep([0, 2])


def test_builder_returns_the_known_node_for_a_known_token():
    builder = TreeBuilder()
    first = builder.add(ROOT, 3, confidence=0.9)
    assert builder.add(ROOT, 3, confidence=0.1) == first
    second = builder.add(first, 3)
    assert builder.path_tokens(second) == [3, 3]
    assert builder.build().confidence == (0.9, 0.5)


@given(trees())
def test_depth_is_the_length_of_the_path(tree):
    assert tree.depths() == [len(tree.path(node)) for node in range(len(tree))]


@given(trees())
def test_a_path_leads_from_the_root_to_its_node_and_child_walks_it(tree):
    for node in range(len(tree)):
        at = ROOT
        for token in tree.path_tokens(node):
            at = tree.child(at, token)
        assert at == node


@given(trees())
def test_children_are_those_that_name_the_node_as_parent(tree):
    found = [child for node in range(ROOT, len(tree)) for child in tree.children(node)]
    assert sorted(found) == list(range(len(tree)))
    assert all(tree.parents[c] == n for n in range(ROOT, len(tree)) for c in tree.children(n))


@given(trees())
def test_is_chain_means_no_node_has_a_sibling(tree):
    assert tree.is_chain == all(len(tree.children(n)) <= 1 for n in range(ROOT, len(tree)))


@given(trees(), st.data())
def test_keeping_whole_paths_keeps_their_tokens(tree, data):
    ends = data.draw(st.lists(st.integers(0, len(tree) - 1))) if tree else []
    nodes = {n for end in ends for n in tree.path(end)}
    kept = tree.keep(nodes)
    assert sorted(kept.path_tokens(n) for n in range(len(kept))) == sorted(tree.path_tokens(n) for n in nodes)


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6))
def test_a_builder_holds_every_prefix_of_every_path_once(paths):
    tree = tree_of(*paths)
    prefixes = {tuple(path[:n]) for path in paths for n in range(1, len(path) + 1)}
    assert sorted(tuple(tree.path_tokens(n)) for n in range(len(tree))) == sorted(prefixes)
