"""measure_rows, and what a loaded model makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes import FakeModel
from slipstream.loading import LoadedModel
from slipstream.policy.timed_at_load import measure_rows


def loaded(model: FakeModel) -> LoadedModel:
    return LoadedModel(model, tokenizer=None)  # type: ignore[arg-type]  # not asked


def test_each_size_is_measured_so_often_and_nothing_stays_open() -> None:
    model = FakeModel()
    seconds = measure_rows(model, (1, 4, 2), context=5, repeats=3, limit_s=60)
    assert {size: len(times) for size, times in seconds.items()} == {1: 3, 4: 3, 2: 3}
    assert model.rows_by_score == [5, *[1, 4, 2] * 3]
    assert not model.open_sequences


def test_it_ends_with_what_it_has_when_the_time_is_over() -> None:
    assert list(measure_rows(FakeModel(), (1, 4), context=1, repeats=9, limit_s=0)) == [1]


@pytest.mark.parametrize(("context", "max_rows", "sizes"), [(512, 3, [1, 2]), (6, 128, [1, 4, 2]), (2, 128, [])])
def test_sizes_that_the_model_does_not_take_are_left_out(context: int, max_rows: int, sizes: list[int]) -> None:
    model = FakeModel(context=context, max_rows=max_rows)
    assert list(measure_rows(model, (1, 4, 8, 2), context=1, repeats=1, limit_s=60)) == sizes


def test_a_loaded_model_is_measured_once() -> None:
    model = FakeModel()
    owner = loaded(model)
    costs = owner.row_costs()
    count = model.num_scores
    assert set(costs) == {1, 2, 4, 8} and owner.row_costs() == costs and model.num_scores == count


def test_a_full_cache_is_left_alone() -> None:
    assert loaded(FakeModel(max_sequences=0)).row_costs() == {}


def test_where_a_device_runs_ahead_more_sizes_are_measured() -> None:
    model = FakeModel()
    model.info = replace(model.info, runs_ahead=True)
    assert set(loaded(model).row_costs()) == {1, 2, 4, 8, 16, 17, 32, 33, 64, 65, 128}
