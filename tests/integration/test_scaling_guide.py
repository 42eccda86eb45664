"""The commands of docs/scaling.md are commands: plans and exports are run, launches are run as exports."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from commands import run_here

GUIDE = Path(__file__).parents[2] / "docs" / "scaling.md"


def commands(*names: str) -> list[str]:
    """Lines of the guide's shell blocks that begin with one of these commands, continued lines joined."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [line for line in lines if line.startswith(tuple(f"slipstream {name} " for name in names))]


@pytest.mark.parametrize("line", commands("plan"))
def test_the_guides_plans_fit(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    result = run_here(*shlex.split(line)[1:])
    assert result.returncode == 0 and "fits" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize("line", commands("export", "launch"))
def test_the_guides_engines_can_be_started_so(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    result = run_here("export", *words[1:])
    assert result.returncode == 0, result.stderr
    written = (tmp_path / words[words.index("-o") + 1]).read_text() if "-o" in words else result.stdout
    assert "vllm" in written


def test_there_were_commands():
    assert len(commands("plan")) >= 3 and len(commands("launch")) >= 3 and len(commands("export")) == 1
