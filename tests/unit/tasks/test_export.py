"""`slipstream export` writes scripts that can be run, and configurations."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipstream.cli import app


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["export", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_script_is_executable_and_a_configuration_is_not(elsewhere: Path):
    run("llama-server", "--model", "m.gguf", "-o", "serve.sh")
    assert (elsewhere / "serve.sh").stat().st_mode & 0o777 == 0o755
    run("ollama", "--model", "m.gguf", "-o", "Modelfile")
    assert not (elsewhere / "Modelfile").stat().st_mode & 0o111
