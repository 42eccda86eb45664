"""Ctrl-C while `generate` answers: what there is of the answer is printed."""

from __future__ import annotations

import json
from itertools import count

import pytest

from commands import run_here
from fakes import FakeModel, letters
from slipstream.core.engine import Engine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Interrupted after the prompt and three tokens."""
    engine = Engine(FakeModel(), letters())
    monkeypatch.setattr("slipstream.tasks.models.load_engine", lambda *given: engine)
    monkeypatch.setattr(engine, "encode", lambda prompt: [3, 1, 4])
    calls, score = count(1), engine.target.score

    def interrupted(requests):
        if next(calls) > 3:
            raise KeyboardInterrupt
        return score(requests)

    monkeypatch.setattr(engine.target, "score", interrupted)
    return engine


def test_what_was_generated_is_printed(engine: Engine) -> None:
    result = run_here("generate", "--raw", "hello")
    assert result.returncode == 130
    assert len(result.stdout.strip()) == 3 and result.stdout.endswith("\n")
    told = result.stderr.splitlines()
    assert told[0].startswith("3 tokens") and told[-1] == "slipstream: interrupted"


def test_the_json_object_says_that_it_was_cancelled(engine: Engine) -> None:
    result = run_here("generate", "--raw", "--json", "hello")
    answer = json.loads(result.stdout)
    assert (result.returncode, answer["finish_reason"], len(answer["tokens"])) == (130, "cancelled", 3)
    assert result.stderr == "slipstream: interrupted\n"
