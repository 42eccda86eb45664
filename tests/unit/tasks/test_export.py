"""`slipstream export` writes scripts that can be run, and manifests."""

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


def test_a_script_is_executable_and_a_manifest_is_not(elsewhere: Path):
    run("llama-server", "--model", "m.gguf", "-o", "serve.sh")
    assert (elsewhere / "serve.sh").stat().st_mode & 0o777 == 0o755
    run("vllm", "--model", "org/x-8B", "--format", "compose", "-o", "compose.yaml")
    assert not (elsewhere / "compose.yaml").stat().st_mode & 0o111


def test_an_unknown_size_is_passed_as_an_option(elsewhere: Path):
    words = ["vllm", "--model", "org/unnamed", "--format", "kubernetes"]
    assert "--weights-gb" in str(CliRunner().invoke(app, ["export", *words]).exception)
    assert "storage: 117Gi" in run(*words, "--weights-gb", "100")
    assert "image: registry/own:1" in run(*words, "--weights-gb", "100", "--image", "registry/own:1")
