"""The line of statistics under an answer."""

from __future__ import annotations

from fakes import FakeDrafter, FakeModel, letters
from slipstream.cli.generate import figures
from slipstream.core.engine import Engine
from slipstream.policy import AutoPolicy


def line(engine: Engine) -> str:
    generation = engine.generate(list(range(20)), max_tokens=4)
    generation.result()
    assert generation.stats.target_forwards > 4
    return figures(generation, engine)


def test_reading_the_prompt_does_not_count_among_the_steps_of_the_answer() -> None:
    engine = Engine(FakeModel(max_rows=4), letters())
    assert "; 4 rounds, 0 of 0 drafted tokens accepted" in line(engine)


def test_the_reason_without_a_drafter_is_that_there_is_none() -> None:
    assert "drafter none; speculation off: no drafter)" in line(
        Engine(FakeModel(max_rows=4), letters(), policy=AutoPolicy())
    )


def test_a_drafter_that_found_nothing_is_not_taken_for_none() -> None:
    engine = Engine(FakeModel(max_rows=4), letters(), drafter=FakeDrafter("silent"), policy=AutoPolicy())
    assert "no drafter" not in line(engine)
