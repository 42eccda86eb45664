"""`slipstream export` writes scripts that can be run, and manifests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import slipstream
from slipstream.cli import app
from slipstream.cli.export import export
from slipstream.errors import UsageError
from slipstream.tasks.options import EngineOptions, TuneOptions


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


def test_the_examples_work_as_printed(elsewhere: Path):
    (elsewhere / "big.gguf").touch()
    examples = re.findall(r"^ +slipstream export (.+)$", export.__doc__ or "", re.M)
    assert len(examples) == 2
    for words in examples:
        run(*shlex.split(words))


@pytest.mark.parametrize("engine", ["bogus", "openai", "transformers"])
def test_what_can_not_be_started_is_refused_with_what_can(engine: str):
    expected = f"'{engine}' is no engine that can be started; expected slipstream, vllm, llama-server, .*ollama$"
    for command in (["export", engine], ["launch", engine]):
        refused = CliRunner().invoke(app, command).exception
        assert isinstance(refused, UsageError) and re.match(expected, str(refused))
    with pytest.raises(UsageError, match="no engine that can be started"), slipstream.launch(engine):
        pass


def test_a_server_that_is_only_asked_needs_its_url():
    openai = EngineOptions("openai")
    for task in (slipstream.bench, slipstream.audit):
        with pytest.raises(UsageError, match="add --url"):
            task(engine=openai)
    with pytest.raises(UsageError, match="no engine that can be started"):
        slipstream.tune(TuneOptions(), engine=openai)
