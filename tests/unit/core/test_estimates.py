"""CostModel and AcceptanceModel: what the policies know."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.acceptance import AcceptanceModel
from slipstream.core.cost import CostModel, RoundCosts, bucket_of
from slipstream.core.tree import EMPTY_TREE, DraftTree

SAMPLES = st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 1.0)), min_size=1, max_size=40)


@given(st.integers(1, 5000))
def test_a_bucket_holds_its_rows_and_at_most_a_quarter_more(rows):
    assert rows <= bucket_of(rows) <= rows * 1.25
    assert bucket_of(bucket_of(rows)) == bucket_of(rows)


@given(SAMPLES)
def test_what_was_seen_a_few_times_costs_no_more_than_more_rows_do(samples):
    costs = CostModel()
    for rows, seconds in {bucket_of(rows): (rows, seconds) for rows, seconds in samples}.values():
        costs.record(rows, seconds)
    curve = [costs.seconds(rows) for rows in range(1, 400)]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(curve))


def test_costs_lie_on_straight_lines_between_what_was_seen():
    costs = CostModel()
    assert (costs.seconds(4), costs.largest) == (0.0, 0)
    costs.record(2, 1.0)
    costs.record(6, 3.0)
    assert [costs.seconds(n) for n in (1, 2, 4, 6)] == [1.0, 1.0, 2.0, 3.0]
    assert costs.seconds(8) == 4.0  # as steep as before
    assert 3.0 < costs.seconds(8, tokens=7.0) < 3.5  # tried where that is safe
    assert costs.curve() == {2: 1.0, 6: 3.0}


def test_after_a_few_sizes_unseen_ones_cost_as_much_as_those_seen():
    costs = CostModel()
    for rows in (1, 2, 3, 5):
        costs.record(rows, float(rows))
    assert costs.seconds(8) == costs.seconds(8, tokens=8.0) == 8.0


def test_a_size_seen_often_speaks_for_itself():
    costs = CostModel()
    for _ in range(4):
        costs.record(3, 2.9)
        costs.record(4, 2.5)
    assert (costs.seconds(3), costs.seconds(4)) == (2.9, 2.5)


def test_costs_keep_pace_with_plain_rounds():
    costs = RoundCosts()
    costs.expect({1: 1.0, 4: 2.0})
    assert costs.seconds(4, num_streams=1) == 2.0
    for _ in range(5):
        costs.record(1, 1, 1.5)  # the context has grown
    assert costs.seconds(4, num_streams=1) == 3.0
    costs.record(4, 1, 3.0)
    assert (costs.seconds(4, num_streams=1), costs.curve()[4]) == (3.0, 2.0)


def test_what_a_round_takes_beyond_the_forward_that_was_measured_is_found_out():
    costs = RoundCosts()
    costs.expect({1: 0.8, 4: 0.9, 8: 1.0})
    costs.plain.record(1, 0.6)  # the device ran ahead: this says nothing of rounds that are waited for
    assert costs.seconds(4, num_streams=1) == 0.9
    costs.record(1, 1, 1.0)
    assert costs.seconds(4, num_streams=1) == pytest.approx(0.9 * 1.25)
    costs.record(8, 8, 1.5)  # many streams
    assert costs.seconds(8, num_streams=8) == pytest.approx(1.5)
    assert costs.seconds(8, num_streams=1) == pytest.approx(1.25)


def test_one_hiccup_does_not_change_a_cost():
    costs = CostModel()
    for seconds in (1.0, 1.1, 50.0, 0.9, 1.0):
        costs.record(1, seconds)
    assert costs.seconds(1) == 1.0
    assert costs.knows(1, 5) and not costs.knows(1, 6)


def test_a_cost_is_known_from_what_lies_within_a_factor_of_two():
    costs = CostModel()
    for _ in range(3):
        costs.record(8, 1.0)
    assert [rows for rows in range(1, 40) if costs.knows(rows, 3)] == list(range(4, 17))


def test_a_cost_follows_a_machine_that_became_slower():
    costs = CostModel()
    for seconds in [1.0] * 20 + [2.0] * 9:
        costs.record(1, seconds)
    assert costs.seconds(1) == 2.0


def learn(model, stream, tree, tokens, times=60):
    for _ in range(times):
        model.observe(stream, "d", tree, tokens)


def test_a_new_drafter_is_believed_and_an_old_one_judged():
    model, tree = AcceptanceModel(), DraftTree.chain([1], [0.8])
    assert model.node_chances(0, "d", tree) == pytest.approx([0.8])
    learn(model, 0, tree, [2])
    assert model.node_chances(0, "d", tree)[0] < 0.05
    learn(model, 0, tree, [1, 5])
    assert model.node_chances(0, "d", tree)[0] > 0.8


def test_a_new_stream_starts_from_what_others_have_shown():
    model, tree = AcceptanceModel(), DraftTree.chain([1], [0.8])
    learn(model, 0, tree, [2])
    assert model.node_chances(99, "d", tree)[0] < 0.1
    assert model.node_chances(99, "another", tree)[0] == pytest.approx(0.8)


def test_streams_are_told_apart():
    model, tree = AcceptanceModel(), DraftTree.chain([1], [0.5])
    for _ in range(60):
        model.observe(0, "d", tree, [1, 9])
        model.observe(1, "d", tree, [2])
    assert model.node_chances(0, "d", tree)[0] > 0.8
    assert model.node_chances(1, "d", tree)[0] < 0.2


def test_a_stream_that_takes_what_others_refuse_is_expected_to_go_on_at_any_depth_and_confidence():
    model = AcceptanceModel()
    learn(model, 0, DraftTree.chain([1, 1, 1], [0.8] * 3), [2])  # most texts do not copy
    learn(model, 1, DraftTree.chain([1], [0.5]), [1], times=6)  # this one does, seen by first tokens of short matches
    learn(model, 2, DraftTree.chain([1], [0.5]), [2], times=6)
    longer = DraftTree.chain([1, 1, 1], [0.8] * 3)
    copying, new, other = (model.node_chances(stream, "d", longer) for stream in (1, 99, 2))
    assert copying[0] > 1.3 * new[0] and copying[2] > 2 * new[2]
    assert other[0] < 0.8 * new[0]
    assert max(copying) <= 0.97
    model.forget(1)
    assert model.node_chances(1, "d", longer) == new


def test_a_nodes_chance_is_the_product_along_its_path():
    chances = AcceptanceModel().node_chances(0, "d", DraftTree((1, 2, 3), (-1, 0, -1), (0.5, 0.5, 0.2)))
    assert chances == pytest.approx([0.5, 0.25, 0.2])


def test_a_draft_that_was_never_scored_is_judged_by_the_targets_token():
    model, tree = AcceptanceModel(), DraftTree.chain([1, 2, 3], [0.5] * 3)
    learn(model, 0, tree, [1])
    assert model.depth_chances("d", 1)[0] > 0.9


def test_depth_chances_fall_with_depth():
    model = AcceptanceModel()
    learn(model, 0, DraftTree.chain([1, 2, 3]), [1, 2, 9])
    first, second, third = model.depth_chances("d", 3)
    assert first > 0.9 and second > 0.8 and third < 0.1
    assert model.depth_chances("d", 0) == []


def test_an_empty_draft_teaches_nothing():
    model = AcceptanceModel()
    before = model.depth_chances("d", 3)
    learn(model, 0, EMPTY_TREE, [1])
    assert model.depth_chances("d", 3) == before
