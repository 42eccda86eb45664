"""RoundTimes and DraftTimes: what rounds and drafts are expected to take."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.policy.draft_times import DraftTimes
from slipstream.policy.round_times import RoundTimes, size_of

ROUNDS = st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 1.0)), min_size=1, max_size=60)
CURVES = st.dictionaries(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.floats(1e-4, 1.0), max_size=7)


def measured(curve) -> RoundTimes:
    times = RoundTimes()
    times.expect(curve)
    return times


@given(st.integers(1, 5000))
def test_a_size_holds_its_rows_and_at_most_a_quarter_more(rows):
    assert rows <= size_of(rows) <= rows * 1.25
    assert size_of(size_of(rows)) == size_of(rows)
    assert size_of(rows) == rows or rows > 16


@given(CURVES, ROUNDS)
def test_more_rows_never_cost_less(curve, rounds):
    times = measured(curve)
    for rows, seconds in rounds:
        times.record(rows, seconds)
    seconds = [times.seconds(rows) for rows in range(1, 400)]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(seconds))
    assert all(s >= 0 for s in seconds)
    assert times.each(1, 399) == seconds


def test_between_measured_sizes_lie_straight_lines_and_beyond_them_the_mean_slope():
    times = measured({2: 1.0, 6: 3.0})
    assert [times.seconds(n) for n in (1, 2, 4, 6, 8)] == [1.0, 1.0, 2.0, 3.0, 4.0]
    assert times.curve() == {2: 1.0, 6: 3.0}


def test_nothing_is_known_before_something_was_measured():
    times = RoundTimes()
    assert not times.is_known and times.seconds(4) == 0.0
    times.record(4, 2.0)
    assert times.is_known and times.seconds(4) == 2.0


def test_the_first_rounds_show_what_the_host_adds_to_a_forward():
    times = measured({1: 0.8, 4: 0.9, 8: 1.0})
    for seconds in (5.0, 1.0, 1.0):  # the first one had to prepare something
        times.record(1, seconds)
    assert times.seconds(1) == pytest.approx(1.0)
    assert times.seconds(8) == pytest.approx(1.2)


def test_the_scale_follows_a_machine_that_became_slower_at_all_sizes():
    times = measured({1: 1.0, 4: 2.0})
    for _ in range(60):
        times.record(1, 1.5)
    assert times.seconds(1) == pytest.approx(1.5, rel=0.06)
    assert times.seconds(4) > 2.4


def test_one_round_that_was_held_up_moves_it_by_a_step_at_most():
    times = measured({1: 1.0, 4: 2.0})
    for _ in range(10):
        times.record(1, 1.0)
    before = times.seconds(1)
    times.record(1, 500.0)
    assert times.seconds(1) < before * 1.06


def test_a_size_that_is_seen_first_is_taken_as_it_is():
    times = measured({1: 1.0})
    for _ in range(3):
        times.record(1, 1.0)
    times.record(8, 4.0)
    assert times.seconds(8) == pytest.approx(4.0)


def test_a_size_whose_first_rounds_take_far_longer_is_learned_from_three_of_them():
    times = RoundTimes()
    times.expect({1: 1.0, 128: 1.0})
    for _ in range(5):
        times.record(1, 1.0)
    for seconds in (3.0, 9.0, 3.0):
        times.record(128, seconds, is_plain=False)
    assert times.seconds(128) == pytest.approx(3.0, rel=0.1)
    assert times.seconds(1) == pytest.approx(1.0, rel=0.1)


def test_plain_rounds_that_the_device_started_are_a_share_of_those_that_are_waited_for():
    times = measured({1: 1.0, 16: 2.0})
    assert not times.is_ahead_known and times.plain(1) == 1.0
    times.record_ahead(1, 0.6, was_asked=False)
    assert times.is_ahead_known
    assert (times.plain(1), times.plain(16)) == (pytest.approx(0.6), pytest.approx(1.2))
    assert times.asking(1) == 0.0
    times.record_ahead(1, 0.7, was_asked=True)
    assert times.asking(1) == pytest.approx(0.1)
    assert (times.drafting(1, 0.05), times.drafting(1, 0.3)) == (pytest.approx(0.1), 0.3)


def test_one_round_that_waited_for_other_programs_does_not_make_plain_decoding_slow():
    times = measured({1: 1.0})
    for seconds in (0.5, 0.5, 20.0, 0.5):
        times.record_ahead(1, seconds, was_asked=False)
    assert times.plain(1) == pytest.approx(0.55, rel=0.02)


def test_a_plain_round_never_counts_as_slower_for_running_ahead():
    times = measured({1: 1.0})
    times.record_ahead(1, 3.0, was_asked=False)
    assert times.plain(1) == 1.0


def test_a_drafter_takes_its_steps_and_what_it_has_to_read():
    times = DraftTimes()
    assert not times.is_known
    times.expect({1: 1.0, 8: 2.0})
    assert times.is_known
    assert times.seconds(1, 3, 0) == 3.0
    assert times.seconds(1, 1, 7) == 2.0  # read along with the first step
    assert times.seconds(8, 1, 0) == 2.0


def test_what_a_free_drafter_takes_is_known_at_once():
    times = DraftTimes()
    times.record(4, 1, 0.5, is_free=True)
    assert times.seconds(4, 1, 0) == 0.5


def test_a_draft_models_first_drafts_are_no_measure():
    times = DraftTimes()
    for _ in range(3):
        times.record(1, 1, 100.0, is_free=False)
    assert not times.is_known
    times.record(1, 2, 1.0, is_free=False)
    assert times.seconds(1, 4, 0) == pytest.approx(2.0)


def test_a_rehearsal_tells_a_draft_from_its_steps():
    times = DraftTimes()
    times.rehearse([(steps, 0.4 + 0.1 * steps) for steps in (1, 4, 8) for _ in range(4)])
    assert times.is_known and times.step(1) == pytest.approx(0.1, rel=0.03)
    assert [times.seconds(1, steps, 0) for steps in (1, 4, 8)] == pytest.approx([0.5, 0.8, 1.2], rel=0.03)
    for _ in range(40):  # later ones correct the steps
        times.record(1, 4, 0.4 + 4 * 0.2, is_free=False)
    assert times.seconds(1, 4, 0) == pytest.approx(1.2, rel=0.05)


def test_other_programs_at_load_do_not_make_drafts_dear():
    times = DraftTimes()
    times.rehearse([(steps, 1.0 + 0.1 * steps + others) for others in (5.0, 0.0, 8.0, 7.0) for steps in (1, 4)])
    assert times.seconds(1, 4, 0) == pytest.approx(1.4)


def test_a_draft_shorter_than_its_beginning_shows_that_load_was_disturbed():
    times = DraftTimes()
    times.rehearse([(steps, 10.0 + 1.0 * steps) for steps in (1, 4)])
    times.record(1, 2, 1.2, is_free=False)
    assert times.seconds(1, 2, 0) == pytest.approx(1.2)
    times.record(1, 2, 1.5, is_free=False)  # from here on as ever
    assert times.seconds(1, 2, 0) == pytest.approx(1.2, rel=0.05)


def test_no_draft_at_all_says_nothing_of_what_drafts_take():
    times = DraftTimes()
    times.rehearse([(steps, 1.0 + 0.1 * steps) for steps in (1, 4)])
    times.record(1, 0, 0.01, is_free=False)
    assert times.seconds(1, 4, 0) == pytest.approx(1.4)


def test_a_first_draft_that_reads_a_prompt_does_not_make_steps_dear():
    """A short prompt is read with the first draft: taken for a step, it kept a head from ever drafting again."""
    times = DraftTimes()
    times.rehearse([(steps, 1.0 + 0.4 * steps) for steps in (1, 4) for _ in range(5)])
    times.record(1, 1, 10.0, num_unread=50, is_free=False)
    assert times.seconds(1, 4, 0) == pytest.approx(2.6)
    for _ in range(60):
        times.record(1, 4, 3.4, num_unread=3, is_free=False)
    assert times.seconds(1, 4, 0) == pytest.approx(3.4, rel=0.05)


@pytest.mark.parametrize("true_s", [6.0, 7.5])
def test_a_size_measured_at_load_follows_its_own_rounds(true_s):
    """Also the last one, and where its class has another number of rows: 65 is of that of 72."""
    times = measured({1: 4.0, 64: 5.4, 65: 6.6})
    for rows, seconds in [(1, 4.0)] * 3 + [(1, 4.0), (65, true_s)] * 200:
        times.record(rows, seconds, is_plain=rows == 1)
    assert times.seconds(65) == pytest.approx(true_s, rel=0.06)
    assert times.seconds(72) < 2 * true_s
