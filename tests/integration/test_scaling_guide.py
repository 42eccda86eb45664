"""The commands of docs/scaling.md are commands: plans and exports are run, launches are run as exports."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "scaling.md"


def commands(*names: str) -> list[str]:
    """Lines of the guide's shell blocks that begin with one of these commands, continued lines joined."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [line for line in lines if line.startswith(tuple(f"slipstream {name} " for name in names))]


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slipstream", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)


@pytest.mark.parametrize("line", commands("plan"))
def test_the_guides_plans_fit(line: str, tmp_path: Path):
    result = run(shlex.split(line)[1:], tmp_path)
    assert result.returncode == 0 and "fits" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize("line", commands("export", "launch"))
def test_the_guides_engines_can_be_started_so(line: str, tmp_path: Path):
    words = shlex.split(line)[1:]
    result = run(["export", *words[1:]], tmp_path)
    assert result.returncode == 0, result.stderr
    written = (tmp_path / words[words.index("-o") + 1]).read_text() if "-o" in words else result.stdout
    assert "vllm" in written


def test_there_were_commands():
    assert len(commands("plan")) >= 3 and len(commands("launch")) >= 3 and len(commands("export")) == 1
