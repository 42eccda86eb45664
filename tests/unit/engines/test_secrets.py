"""Keys stay out of command lines, files and output."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from slipstream.cli import app
from slipstream.cli import options as opt
from slipstream.engines import find_engine
from slipstream.engines.client import Client
from slipstream.engines.engine_types import EngineSettings, StartPlan
from slipstream.engines.process import EngineProcess
from slipstream.engines.secrets import redacted, redacted_text, take_secrets
from slipstream.errors import UsageError
from slipstream.tasks.options import RunningEngineOptions

KEY = "sk-12345"


@pytest.mark.parametrize(
    "words",
    [
        ["slipstream", "bench", "--api-key", KEY],
        ["slipstream", "bench", f"--api-key={KEY}"],
        ["slipstream", "bench", "--api-key", f"-{KEY}"],
        ["slipstream", "bench", "--engine-args", f"--threads 4 --api-key {KEY}"],
        ["slipstream", "bench", f"--engine-args=--api-key {KEY}"],
        ["slipstream", "bench", "--engine-args", f"--api-key '{KEY} and more"],
        ["slipstream", "bench", "--url", f"https://user:{KEY}@host:8000/v1"],
        ["vllm", "serve", "m", "--api_key", KEY, f"second {KEY}", "--port", "1"],
        ["vllm", "serve", "m", "--ssl-keyfile-password", KEY],
        ["llama-server", "-hft", KEY],
        ["sglang", "serve", "--admin-api-key", KEY],
        ["sh", "-c", f"VLLM_API_KEY={KEY} exec vllm"],
        ["vllm", "serve", "--kv-transfer-config", json.dumps({"api_key": KEY, "size": 4})],
    ],
)
def test_a_command_line_is_shown_without_its_keys(words: list[str]) -> None:
    shown = redacted(words)
    assert KEY not in " ".join(shown)
    assert "HIDDEN" in " ".join(shown)
    assert len(shown) == len(words)


def test_what_is_no_secret_is_shown_as_it_is() -> None:
    words = [
        "slipstream", "bench", "--max-tokens", "8", "--api-key-file", "key.txt", "--engine-args", "-t 4  --x 'a b'",
        "--tokenizer", "t", "--ssl-keyfile", "k.pem", "--url", "http://host:80", "--prompts", "a secret.txt",
    ]  # fmt: skip
    assert redacted(words) == words
    assert redacted_text("") == ""


def test_the_recorded_command_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["slipstream", "bench", "--api-key", KEY, "--limit", "1"])
    assert opt.command_line() == "slipstream bench --api-key HIDDEN --limit 1"


def test_secrets_are_taken_out_of_the_engine_s_arguments() -> None:
    words = ["--threads", "4", "--api_key", KEY, "--hf-token=abc", "--jinja"]
    assert take_secrets(words, ("--api-key", "--hf-token")) == (
        {"--api-key": KEY, "--hf-token": "abc"},
        ("--threads", "4", "--jinja"),
    )
    for wrong in (["--api-key"], ["--api-key", "a", "b"], ["--api-key", "a", "--api-key", "b"]):
        with pytest.raises(UsageError, match="--api-key among the engine's arguments; expected one value"):
            take_secrets(wrong, ("--api-key",))


@pytest.mark.parametrize(("engine", "variable"), [("llama-server", "LLAMA_API_KEY"), ("vllm", "VLLM_API_KEY")])
def test_an_engine_gets_its_key_through_the_environment(engine: str, variable: str) -> None:
    plan = find_engine(engine).plan(EngineSettings("m", secrets={"--api-key": KEY}), Path())
    assert plan.secret_env == {variable: KEY}
    assert KEY not in " ".join(plan.argv)
    assert KEY not in repr(plan)


def test_sglang_gets_its_key_through_a_private_file(tmp_path: Path) -> None:
    plan = find_engine("sglang").plan(EngineSettings("m", secrets={"--api-key": KEY}), tmp_path)
    assert plan.argv[-2:] == ("--config", str(tmp_path / "secrets.yml"))
    assert yaml.safe_load(plan.secret_files["secrets.yml"]) == {"api-key": KEY}
    with pytest.raises(UsageError, match="one --config"):
        find_engine("sglang").plan(EngineSettings("m", secrets={"--api-key": KEY}, extra=("--config", "x")), tmp_path)


def test_a_child_finds_the_key_in_its_environment_and_in_a_file_that_only_the_user_reads(tmp_path: Path) -> None:
    program = "import os, pathlib; print(os.environ['SOME_KEY'] + pathlib.Path('key.yml').read_text(), flush=True)"
    plan = StartPlan((sys.executable, "-c", program), cwd=str(tmp_path), secret_env={"SOME_KEY": KEY},
                secret_files={"key.yml": f" {KEY}"})  # fmt: skip
    with EngineProcess.start(plan, tmp_path) as process:
        assert (tmp_path / "key.yml").stat().st_mode & 0o777 == 0o600
        cmdline = Path(f"/proc/{process.pid}/cmdline")
        assert not cmdline.exists() or KEY not in cmdline.read_text()
        process._child.wait(30)
    assert process.last_lines() == [f"{KEY} {KEY}"]


@pytest.mark.parametrize(
    ("engine", "options"),
    [(name, form) for name in ("llama-server", "vllm", "sglang") for form in ([], ["--json"])]
    + [(name, ["--format", form]) for name in ("llama-server", "vllm", "sglang") for form in ("kubernetes", "compose")],
)
def test_export_names_the_key_and_does_not_write_it(engine: str, options: list[str], tmp_path: Path) -> None:
    words = ["export", engine, "--model", "m-8B.gguf" if engine == "llama-server" else "org/m-8B", *options]
    secrets = f"--api-key {KEY} --ssl-keyfile-password {KEY}"
    done = CliRunner().invoke(app, [*words, "--engine-args", secrets, "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "out").read_text()
    assert KEY not in text
    assert "HIDDEN" in text  # the password, which has no other way
    assert options == ["--json"] or "replace HIDDEN" in text
    assert {"llama-server": "LLAMA_API_KEY", "vllm": "VLLM_API_KEY", "sglang": "secrets.yml"}[engine] in text


def test_the_key_of_a_file_goes_before_that_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert RunningEngineOptions(api_key="other", api_key_file=file).key() == KEY
    assert RunningEngineOptions(api_key="other").key() == "other"
    file.write_text("\n")
    with pytest.raises(UsageError, match="is empty"):
        RunningEngineOptions(api_key_file=file).key()
    with pytest.raises(UsageError, match="can't read --api-key-file"):
        RunningEngineOptions(api_key_file=tmp_path / "missing").key()
    with pytest.raises(UsageError, match="one line of ASCII") as refused:
        RunningEngineOptions(api_key=f"{KEY}\nX: y").key()
    assert KEY not in str(refused.value)


def test_messages_of_a_client_show_no_password() -> None:
    assert KEY not in Client(f"http://user:{KEY}@host:1").url
    with pytest.raises(UsageError) as refused:
        Client(f"ftp://user:{KEY}@host:1")
    assert KEY not in str(refused.value)
