from __future__ import annotations

from fakes import FakeModel, letters
from slipstream.core.engine import Engine
from slipstream.core.prompt_pace import PromptPace


def test_without_a_limit_everything_is_read():
    pace = PromptPace()
    pace.record(100, 1000.0)
    assert pace.rows(512) == 512


def test_the_rows_are_those_that_fit_the_time():
    pace = PromptPace(0.1)
    assert pace.rows(512) == 32
    pace.record(100, 0.2)
    assert pace.rows(512) == 50
    pace.record(1, 5.0)  # says nothing of rows
    assert pace.rows(512) == 50
    assert pace.rows(8) == 8
    for _ in range(30):
        pace.record(100, 100.0)
    assert pace.rows(512) == 16


def test_a_long_prompt_does_not_hold_up_a_running_stream():
    """Each step of the running stream reads a part of the prompt; alone, the prompt is read in whole chunks."""
    model = FakeModel(vocab=32, max_rows=128)
    engine = Engine(model, letters(), max_stall_s=0.1, prefill_chunk=100, clock=lambda: 0.0)
    running = engine.generate([1, 2], max_tokens=50, ignore_eos=True)
    engine.step()
    joining = engine.generate([3] * 100, max_tokens=5, ignore_eos=True)
    before = running.stream.num_answer_tokens
    model.rows_by_score.clear()
    for _ in range(4):
        engine.step()
    assert running.stream.num_answer_tokens == before + 4
    assert model.rows_by_score == [33, 33, 33, 5]
    assert joining.stream.num_answer_tokens == 1
    engine.close()
    alone = engine.generate([3] * 100, max_tokens=1, ignore_eos=True)
    model.rows_by_score.clear()
    engine.step()
    assert model.rows_by_score == [100] and alone.stream.done
