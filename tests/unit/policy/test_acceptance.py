"""Acceptance: the probability that a drafted token is accepted, and how far it may be off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeDrafter, make_stream
from slipstream.core.stream import Observation
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree, TreeBuilder
from slipstream.core.verify import Verdict
from slipstream.policy.acceptance import Acceptance, AcceptanceRecord, Chance, JudgedDraft, quantile
from slipstream.policy.budget import LossBudget
from slipstream.policy.constants import CAUTION, CREDIT, PRIOR
from slipstream.policy.knowledge import Knowledge
from slipstream.policy.offers import Offers

SURE = DraftTree.chain([1], [0.8])
UNITS = st.floats(0.0, 1.0)


def learn(acceptance, tree, tokens, recent=None, times=60):
    recent = recent or AcceptanceRecord()
    for _ in range(times):
        acceptance.observe([JudgedDraft(tree, tokens, recent)])
    return recent


def chance(acceptance, tree=SURE, recent=None):
    return acceptance.of_trees([tree], [recent or AcceptanceRecord()])[0].p[0]


def test_a_new_drafter_is_believed_and_a_known_one_is_judged():
    acceptance = Acceptance()
    assert chance(acceptance) == pytest.approx(0.8)
    learn(acceptance, SURE, [2])
    assert chance(acceptance) < 0.2
    learn(acceptance, SURE, [1, 5], times=100)
    assert chance(acceptance) > 0.8


def test_streams_are_told_apart_by_how_their_drafts_began():
    acceptance, copying, other = Acceptance(), AcceptanceRecord(), AcceptanceRecord()
    for _ in range(60):
        acceptance.observe([JudgedDraft(SURE, [1, 9], copying), JudgedDraft(SURE, [2], other)])
    assert chance(acceptance, recent=copying) > 0.65
    assert chance(acceptance, recent=other) < 0.35
    assert chance(acceptance) == pytest.approx(0.5, abs=0.1)


def test_a_nodes_chance_is_the_product_along_its_path():
    tree = DraftTree((1, 2, 3), (ROOT, 0, ROOT), (0.5, 0.5, 0.2))
    assert Acceptance().of_trees([tree], [AcceptanceRecord()])[0].p == pytest.approx([0.5, 0.25, 0.2])


OFFER = st.lists(st.tuples(st.integers(-1, 8), UNITS), max_size=9)


@given(OFFER, OFFER, st.booleans(), st.lists(UNITS, max_size=30))
def test_offered_nodes_are_ranked_by_chance_and_parents_come_first(nodes, others, cautiously, seen):
    known, stream = Knowledge(16), make_stream([1])
    for confidence in seen:
        tokens = [1 if confidence > 0.3 else 2]
        draft = JudgedDraft(DraftTree.chain([1], [confidence]), tokens, AcceptanceRecord())
        known.drafters["d"].acceptance.observe([draft])
    offers = Offers([stream], [18])
    for name, of_drafter in (("d", nodes), ("e", others)):
        builder = TreeBuilder()
        for i, (parent, confidence) in enumerate(of_drafter):
            builder.add(min(parent, i - 1), i, confidence)
        offers.add(stream, FakeDrafter(name), builder.build())
    offers.weigh(known)
    order, chances = offers.ranked(99, cautiously=cautiously)
    assert sorted(order) == list(range(len(order))) and chances == sorted(chances, reverse=True)
    assert all(0 <= c <= 1 for c in chances)
    for count in range(len(order) + 1):
        assert len(offers.trees(order[:count])[0]) == count  # a child without its parent would raise


def test_what_several_drafters_offer_keeps_to_the_streams_room():
    known, stream = Knowledge(16), make_stream([1])
    offers = Offers([stream], [2])
    offers.add(stream, FakeDrafter("a"), DraftTree.chain([1, 2], [0.9, 0.3]))
    offers.add(stream, FakeDrafter("b"), DraftTree.chain([3, 4], [0.6, 0.5]))
    offers.weigh(known)
    order, _ = offers.ranked(99, cautiously=False)
    assert offers.trees(order)[0].tokens == (1, 3)


def test_a_drafter_is_credited_with_what_it_alone_proposed():
    stream, scored = make_stream([1]), DraftTree((1, 2, 3, 4), (-1, 0, 0, 1))
    offers = Offers([stream], [16])
    offers.add(stream, FakeDrafter("a"), DraftTree.chain([1, 2, 4]))
    seen = [Observation(stream, scored, Verdict((0, 1, 3), 9))]
    assert offers.credit_of("a", seen) == (4, 3)  # all is its own
    offers.add(stream, FakeDrafter("b"), DraftTree.chain([1, 3]))
    assert offers.credit_of("a", seen) == (2, 2)
    assert offers.credit_of("b", seen) == (1, 0)
    assert offers.credit_of("c", seen) == (0, 0)


def random_tree(nodes):
    builder = TreeBuilder()
    for i, (parent, token, confidence) in enumerate(nodes):
        builder.add(min(parent, i - 1, len(builder) - 1), token, confidence)
    return builder.build()


NODES = st.lists(st.tuples(st.integers(-1, 8), st.integers(0, 2), UNITS), max_size=9)
ROUNDS = st.lists(st.tuples(NODES, st.lists(st.integers(0, 2), min_size=1, max_size=4), st.booleans()), max_size=12)


@given(ROUNDS)
def test_streams_are_weighed_and_learned_from_together_as_one_after_the_other(drafts):
    together, alone = Acceptance(), Acceptance()
    recent = [AcceptanceRecord() for _ in drafts], [AcceptanceRecord() for _ in drafts]
    trees = [random_tree(nodes) for nodes, _, _ in drafts]
    judged = list(zip(trees, [tokens for _, tokens, _ in drafts], [early for *_, early in drafts], strict=True))
    for _ in range(3):
        together.observe([JudgedDraft(t, n, r, early) for (t, n, early), r in zip(judged, recent[0], strict=True)])
        for (tree, tokens, early), record in zip(judged, recent[1], strict=True):
            alone.observe([JudgedDraft(tree, tokens, record, early)])
    assert recent[0] == recent[1]
    assert together.of_depths(5, []) == alone.of_depths(5, [])
    one_by_one = [alone.of_trees([tree], [record])[0] for tree, record in zip(trees, recent[1], strict=True)]
    assert together.of_trees(trees, recent[0]) == one_by_one
    for tree, (p, cautious) in zip(trees, one_by_one, strict=True):
        for node, parent in enumerate(tree.parents):
            assert 0 <= cautious[node] <= p[node] <= (1 if parent == ROOT else p[parent])
            assert parent == ROOT or cautious[node] <= cautious[parent]


def test_the_cautious_chance_is_the_lower_quantile():
    (chances,) = Acceptance().of_trees([DraftTree.chain([1, 2], [0.9, 0.6])], [AcceptanceRecord()])
    assert chances.cautious == [quantile(p, 2 * PRIOR, -CAUTION) for p in chances.p]


@given(UNITS, st.floats(0, 1000), st.floats(0, 4))
def test_quantiles_lie_on_both_sides_of_p_and_close_in_with_what_was_seen(p, weight, z):
    known, better = Chance(p, weight), Chance(p, weight + 50)
    assert 0 <= quantile(*known, -z) <= p <= quantile(*known, z) <= 1
    assert quantile(*better, z) - quantile(*better, -z) <= quantile(*known, z) - quantile(*known, -z) + 1e-9


def test_a_draft_that_was_never_scored_is_judged_by_the_targets_token():
    acceptance = Acceptance()
    learn(acceptance, DraftTree.chain([1, 2, 3], [0.5] * 3), [1])
    assert acceptance.of_depths(1, [])[0].p > 0.9


def test_chances_fall_with_depth_and_a_first_token_that_took_time_and_came_empty_was_wrong():
    acceptance = Acceptance()
    learn(acceptance, DraftTree.chain([1, 2, 3]), [1, 2, 9])
    first, second, third = (c.p for c in acceptance.of_depths(3, []))
    assert first > 0.9 and second > 0.8 and third < 0.25
    assert acceptance.of_depths(0, []) == []
    learn(acceptance, EMPTY_TREE, [1], times=100)
    assert acceptance.of_depths(1, [])[0].p < 0.25


def test_what_was_seen_long_ago_counts_less_and_is_less_certain():
    acceptance = Acceptance()
    learn(acceptance, SURE, [2])
    now, later = (acceptance.of_depths(1, [], left)[0] for left in (1.0, 0.1))
    assert later.p > now.p and later.weight < now.weight


def test_the_budget_pays_for_losses_out_of_its_share_and_of_gains_and_forgets_both():
    budget = LossBudget()
    assert budget.allows(CREDIT) and not budget.allows(CREDIT + 0.1)
    budget.record(gained=50.0)
    assert not budget.allows(CREDIT + 0.1)
    budget.record(gained=-CREDIT - 0.1)
    assert not budget.allows(0.0)
    for _ in range(10):
        budget.record(gained=0.0)
    assert budget.allows(0.0) and not budget.allows(0.2)
    budget.record(gained=-50.0)
    for _ in range(30):
        budget.record(gained=0.0)
    assert budget.allows(0.0)
