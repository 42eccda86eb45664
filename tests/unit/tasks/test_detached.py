"""Engines that were left running are found by any name of their engine."""

from __future__ import annotations

import pytest

from slipstream.engines.detached import Detached
from slipstream.errors import UsageError
from slipstream.tasks import launch

LEFT = [
    Detached("llama-server", 1, "http://127.0.0.1:8080", "m", "draft", "log", "2026-11-19"),
    Detached("vllm", 2, "http://127.0.0.1:8000", "m", "draft", "log", "2026-11-19"),
]


@pytest.mark.parametrize(
    ("name", "port", "found"),
    [(None, None, [1, 2]), ("llama.cpp", None, [1]), ("llama-server", 8080, [1]), ("vllm", 8080, [])],
)
def test_by_name_and_port(
    monkeypatch: pytest.MonkeyPatch, name: str | None, port: int | None, found: list[int]
) -> None:
    monkeypatch.setattr(launch, "detached_engines", lambda: LEFT)
    assert [one.pid for one in launch.detached(name, port)] == found


def test_an_unknown_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "detached_engines", lambda: LEFT)
    with pytest.raises(UsageError, match="nonsense"):
        launch.detached("nonsense")
