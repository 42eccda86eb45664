"""Every command, started in a folder full of traps, in Python's development mode with warnings as errors.

The folder holds a module for every name of the standard library and of this project's dependencies, and a program for
every name that is looked up on PATH. Each leaves a marker when it is executed. A command without a case here fails.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs
import pytest
import typer

from slipstream.cli import app
from slipstream.engines.ports import free_port
from slipstream.models import open_checkpoint
from slipstream.models.export.folder import export_folder
from unit.measurement import test_regression
from unit.models.model_files import write_gguf

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
SCRIPT = str(Path(sys.executable).with_name("slipstream"))
CPU_LIMIT_S = 120  # of one command: processor time, which other work on the machine does not take
PACKAGES = [
    "click", "gguf", "huggingface_hub", "jinja2", "llama_cpp", "markupsafe", "numpy", "pip", "pkg_resources",
    "platformdirs", "pygments", "rich", "safetensors", "setuptools", "shellingham", "sitecustomize", "slipstream",
    "tokenizers", "torch", "transformers", "triton", "typer", "usercustomize", "xllamacpp", "yaml",
]  # fmt: skip
PROGRAMS = [
    "cc", "clang", "gcc", "llama-server", "lscpu", "ninja", "nvidia-smi", "ollama", "ps", "python", "python3", "ray",
    "sh", "sysctl", "vllm",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Words of a command line; {tiny}, {folder} … are paths of the workshop."""

    words: str
    code: int = 0
    stdin: str = ""
    environment: dict[str, str] = field(default_factory=dict)


SMALL = "--limit 1 --max-tokens 8 --prompts {prompts}"
NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "{empty}", "SLIPSTREAM_CACHE": "{empty}/cache"}
CASES = {
    "audit": [Case("--model {tiny} --drafter ngram --temperatures 0 " + SMALL)],
    "bench": [Case("--model {tiny} --drafter ngram --passes 1 --report {out}/report.html " + SMALL)],
    "chat": [Case("--model {tiny} --max-tokens 4", stdin="Hello!\n/quit\n")],
    "compare": [Case("{result} {result}")],
    "convert": [Case("{tiny} {out}/converted")],
    "quantise": [Case("{folder} {out}/quantised.gguf --to q4_1")],
    "demo": [Case("--model {tiny} --drafter ngram --max-tokens 4")],
    "distil": [
        Case(
            "--target {tiny} --transcripts {transcripts} --length 64 --layers 1 --steps 3 --batch-tokens 256 "
            "--held-back 0.3 --device cpu --threads 1 -o {out}/draft"
        )
    ],
    "doctor": [Case("--target {folder} --draft {folder} --python {python}")],
    "export": [Case("llama-server --model {tiny} --drafter ngram -o {out}/serve.sh")],
    "generate": [Case("--model {tiny} --draft {tiny} --max-tokens 4 Hello")],
    "launch": [
        Case(
            "llama-server --model {tiny} --drafter ngram --no-smoke --force --detach --port {port} --context 128 "
            "--engine-args '--threads 1 --no-warmup'"
        ),
        Case("--status"),
        Case("--stop"),
    ],
    "engines": [Case(""), Case("vllm --json")],
    "list": [Case("--search {folder}/..")],
    "pairs": [Case("--target {tiny} --search {folder}/..", 1)],  # nothing smaller
    "plan": [Case("--target {tiny} --gpus 8")],
    "pull": [Case("smollm2-135m", 1, environment=NO_INDEX)],  # pip runs, and finds nothing to fetch
    "rm": [Case("smollm2-135m --yes", environment={"SLIPSTREAM_CACHE": "{spare}"})],
    "serve": [Case("--model {tiny} --host 0.0.0.0 --port 0", 2)],  # refused: there is no key
    "show": [Case("{folder}")],
    "train": [
        Case(
            "--target {tiny} --transcripts {transcripts} --length 64 --draft-vocab 300 --steps 3 --batch-tokens 256 "
            "--held-back 0.3 --device cpu --threads 1 -o {out}/head"
        )
    ],
    "tune": [Case("--model {tiny} --drafter ngram --seconds 5 --output {out}/tuned.yaml " + SMALL)],
}  # fmt: skip


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Places that the cases name. An engine that a failed case left running is ended."""
    root = tmp_path_factory.mktemp("workshop")
    for name in ("empty", "out", "cache", "models"):
        (root / name).mkdir()
    tiny, folder = root / "models" / "tiny.gguf", root / "models" / "folder"
    write_gguf(tiny, metadata={"llama.context_length": 8192})
    export_folder(open_checkpoint(tiny), folder)
    (root / "prompts.txt").write_text("one two three four one two three four one two\n")
    (root / "transcripts.jsonl").write_text("".join(map(_conversation, range(40))))
    (root / "result.json").write_text(json.dumps(test_regression.result(test_regression.run())))
    (root / "spare" / "models").mkdir(parents=True)  # a cache with a model that may go
    (root / "spare" / "models" / "smollm2-135m.gguf").write_bytes(tiny.read_bytes())
    kernels = platformdirs.user_cache_path("slipstream", appauthor=False) / "kernels"  # compiled once per machine
    kernels.mkdir(parents=True, exist_ok=True)
    (root / "cache" / "kernels").symlink_to(kernels)
    places = {
        "transcripts": str(root / "transcripts.jsonl"),
        "tiny": str(tiny), "folder": str(folder), "prompts": str(root / "prompts.txt"),
        "result": str(root / "result.json"), "empty": str(root / "empty"), "out": str(root / "out"),
        "cache": str(root / "cache"), "spare": str(root / "spare"), "python": sys.executable, "port": str(free_port()),
    }  # fmt: skip
    yield places
    run([SCRIPT, "launch"], Case("--stop"), places, root)


def _conversation(number: int) -> str:
    asked = {"role": "user", "content": f"What is {number}?"}
    answer = {"role": "assistant", "content": f"It is the number {number}, and {number + 1} is next."}
    return json.dumps({"messages": [asked, answer]}) + "\n"


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which nothing may be executed, and a `markers` folder beside it."""
    folder = tmp_path_factory.mktemp("traps")
    (folder / "markers").mkdir()
    here = folder / "here"
    here.mkdir()
    for name in {*PACKAGES, *sys.stdlib_module_names}:
        (here / f"{name}.py").write_text(f"open({str(folder / 'markers' / name)!r}, 'w').close()\n")
    for name in ("pip", "json"):  # a package goes before a module of the same name
        (here / name).mkdir()
        for file in ("__init__.py", "__main__.py"):
            (here / name / file).write_text(f"open({str(folder / 'markers' / f'{name} {file}')!r}, 'w').close()\n")
    for name in PROGRAMS:
        (here / name).write_text(f"#!/bin/sh\n: > '{folder / 'markers' / f'program {name}'}'\nexit 1\n")
        (here / name).chmod(0o755)
    return folder


def sprung(traps: Path) -> list[str]:
    """The traps that were executed since the last call."""
    found = sorted((traps / "markers").iterdir())
    for marker in found:
        marker.unlink()
    return [marker.name for marker in found]


def run(start: list[str], case: Case, places: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """`start` is a command line up to the command's name. PATH names the current folder in three ways."""
    own = {name: value.format(**places) for name, value in case.environment.items()}
    path = os.pathsep.join([".", "", *os.environ["PATH"].split(os.pathsep), "./"])
    return subprocess.run(
        [*start, *shlex.split(case.words.format(**places))],
        input=case.stdin, capture_output=True, text=True, cwd=cwd,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S)),
        env=os.environ | {"PATH": path, "SLIPSTREAM_CACHE": places["cache"]} | own,
    )  # fmt: skip


def test_every_command_has_a_case() -> None:
    assert sorted(CASES) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_it_executes_nothing_of_the_current_folder_and_warns_of_nothing(
    command: str, workshop: dict[str, str], traps: Path
) -> None:
    for case in CASES.get(command, []):
        done = run([sys.executable, "-X", "dev", "-W", "error", SCRIPT, command], case, workshop, traps / "here")
        assert sprung(traps) == []
        assert done.returncode == case.code, done.stderr
        assert not [word for word in ("Warning", "Exception ignored", "Traceback") if word in done.stderr], done.stderr


@pytest.mark.parametrize("command", ["compare", "plan"])
def test_python_m_slipstream_takes_no_package_of_the_current_folder(
    command: str, workshop: dict[str, str], traps: Path
) -> None:
    """Python itself looks for `slipstream` and runpy's own imports there, which no program can prevent."""
    cwd = traps / "packages"
    cwd.mkdir(exist_ok=True)
    for name in set(PACKAGES) - {"slipstream"}:
        (cwd / f"{name}.py").write_text((traps / "here" / f"{name}.py").read_text())
    done = run([sys.executable, "-m", "slipstream", command], CASES[command][0], workshop, cwd)
    assert sprung(traps) == []
    assert done.returncode == 0, done.stderr
