"""A conversation goes on after an answer that failed, and knows a few commands."""

from __future__ import annotations

import io
import sys

import pytest

from commands import run_here
from fakes import FakeModel, letters
from slipstream.cli.chat import Conversation
from slipstream.core.engine import Engine
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.errors import CapacityError, SlipstreamError


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


@pytest.mark.parametrize(("failing", "code"), [("ab", 1), ("a", 0), ("", 0)])
def test_a_piped_conversation_in_which_every_answer_fails_has_failed(
    failing: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(FakeModel(), letters())

    def encode(messages: list[dict[str, str]]) -> list[int]:
        if messages[-1]["content"] in failing:
            raise SlipstreamError("no")
        return [3, 1, 4]

    monkeypatch.setattr(engine, "encode", encode)
    monkeypatch.setattr("slipstream.tasks.models.load_engine", lambda *given: engine)
    monkeypatch.setattr("builtins.input", lambda prompt: sys.stdin.readline().strip() or "/quit")
    assert run_here("chat", stdin="a\nb\n").returncode == code


@pytest.mark.parametrize("end", ["/quit", "/exit"])
def test_help_and_both_words_for_the_end(
    end: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["/help", end])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert Conversation(Engine(FakeModel(), letters()), Sampling(), Limits(4), None, tint=False).run()
    told = capsys.readouterr().err
    assert "/help shows this" in told and "unknown command" not in told
