"""A conversation goes on after an answer that failed."""

from __future__ import annotations

import pytest

from fakes import FakeModel, letters
from slipstream.cli.chat import Conversation
from slipstream.core.engine import Engine
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.errors import CapacityError


def test_an_answer_that_fails_while_it_is_read_is_told_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Engine(FakeModel(), letters())
    monkeypatch.setattr(engine, "encode", lambda messages: [3, 1, 4])
    conversation = Conversation(engine, Sampling(), Limits(4), None, tint=False)

    def full(*given: object) -> None:
        raise CapacityError("the cache is full")

    with monkeypatch.context() as failing:
        failing.setattr(engine.target, "open", full)
        conversation._answer("hello")
    assert "the cache is full. Try /reset." in capsys.readouterr().err
    assert not conversation._messages
    conversation._answer("hello")
    assert [message["role"] for message in conversation._messages] == ["user", "assistant"]
