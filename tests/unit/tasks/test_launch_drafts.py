"""A setting that drafts nothing is not "on": launch refuses it, and says what it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.core.generator import Answer
from slipstream.core.stats import Stats
from slipstream.engines.engine_types import PLAIN, EngineSettings
from slipstream.errors import EngineError, EngineRequestError
from slipstream.tasks import engine_runs
from slipstream.tasks import launch as launching
from slipstream.tasks.options import LaunchOptions, ModelOptions
from slipstream.tasks.reporter import Reporter


class Heard(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


class Probed:
    """Stands for HttpGenerator: drafts as `drafts` says for each answer; None reports no counters."""

    drafts: list[int | Exception | None]
    prompts: list[str]

    def __init__(self, *_: object) -> None:
        pass

    def answer(self, prompt: str, sampling: Any, limits: Any) -> Answer:
        assert sampling.is_greedy and limits.max_tokens >= 48
        Probed.prompts.append(prompt)
        count = Probed.drafts.pop(0)
        if isinstance(count, Exception):
            raise count
        return Answer("", (), "length", Stats(num_drafted=count or 0, drafts_counted=count is not None))


def launched(
    monkeypatch: pytest.MonkeyPatch, drafts: list[int | Exception | None], *, force: bool = False, method: str = "ngram"
) -> tuple[launching.Launched, list[str]]:
    heard = Heard()
    Probed.drafts, Probed.prompts = drafts, []
    settings = EngineSettings("m", method=method, draft_length=4)

    @contextmanager
    def running(*_: object, **__: object) -> Iterator[Any]:
        process = SimpleNamespace(exit_code=None)
        yield SimpleNamespace(engine=SimpleNamespace(name="fake"), settings=settings, client=None, process=process)

    monkeypatch.setattr(engine_runs, "HttpGenerator", Probed)
    monkeypatch.setattr(launching, "engine_running", running)
    monkeypatch.setattr(launching, "engine_settings", lambda *_: settings)
    monkeypatch.setattr(launching, "check_first", lambda *_: [])
    options = LaunchOptions(smoke=False, force=force)
    with launching.launch("llama-server", ModelOptions("m"), options, reporter=heard) as engine:
        return engine, heard.lines


def test_what_drafts_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"fake drafted nothing with ngram, draft length 4.*--force"):
        launched(monkeypatch, [0, 0])
    assert len(Probed.prompts) == 2


def test_force_keeps_it_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, said = launched(monkeypatch, [0, 0], force=True)
    assert engine.num_drafted == 0
    assert said[0].startswith("WARNING: fake drafted nothing with ngram")


def test_one_drafted_text_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, said = launched(monkeypatch, [0, 7])
    assert engine.num_drafted == 7
    assert said == ["it drafts: 7 tokens in a test request"]


def test_without_counters_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, said = launched(monkeypatch, [None, None])
    assert engine.num_drafted is None
    assert said == ["the engine reports no counters: whether it drafts is not known"]


def test_plain_decoding_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, said = launched(monkeypatch, [], method=PLAIN)
    assert (engine.num_drafted, said, Probed.prompts) == (None, [], [])


def test_a_refused_text_is_no_evidence_and_a_death_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched(monkeypatch, [EngineRequestError("too long", 400), 3])[0].num_drafted == 3
    with pytest.raises(EngineRequestError, match="gone"):
        launched(monkeypatch, [EngineRequestError("gone")])
