"""Damaged files, a small part of `python tools/fuzz_files.py`: no traceback, no hang; doctor and generate agree."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cpu_time import cpu_seconds
from file_damage import sound
from file_damage.cases import KINDS, SoundModels, kind_of, make_case, numbers
from file_damage.gguf_damage import damage_gguf

TOOL = Path(__file__).parents[2] / "tools" / "fuzz_files.py"
CASES, CPU_LIMIT_S = 60, 60
pytestmark = pytest.mark.timeout(900)  # processor time is what is limited; a busy machine takes longer


@pytest.fixture(scope="module")
def fuzzed() -> tuple[dict[str, Any], float]:
    """What 60 cases gave, and the processor time of all of it."""
    started = cpu_seconds()
    command = [sys.executable, str(TOOL), "--count", str(CASES), "--seed", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout), cpu_seconds() - started


def test_damaged_files_are_refused_or_accepted_by_all_commands_alike(fuzzed: tuple[dict[str, Any], float]) -> None:
    summary, _ = fuzzed
    found = [f"{each['numbers']} {each['rule']}: {each['cause']}" for each in summary["violations"]]
    assert found == [], "\n".join(["run: python tools/fuzz_files.py --seed 1 --only NUMBER", *found])


def test_all_kinds_had_a_turn_within_a_minute_of_processor_time(fuzzed: tuple[dict[str, Any], float]) -> None:
    summary, seconds = fuzzed
    assert summary["cases"] == CASES
    assert all(summary["outcomes"][kind] for kind in KINDS)
    assert seconds < CPU_LIMIT_S


def test_seed_and_number_decide_a_case(tmp_path: Path) -> None:
    models = SoundModels.write(tmp_path / "sound")
    for number in numbers(12, ("gguf", "safetensors", "json", "yaml", "log")):
        first, second = (make_case(number, 7, tmp_path / name, models) for name in ("a", "b"))
        assert first.what == second.what
        assert _content(first.folder) == _content(second.folder)
    assert make_case(0, 7, tmp_path / "c", models).what != make_case(0, 8, tmp_path / "d", models).what


def _content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_chosen_kinds_keep_their_numbers() -> None:
    assert [number for number in numbers(200, KINDS) if kind_of(number) == "log"][:20] == numbers(20, ("log",))


def test_damage_changes_the_file() -> None:
    """Few draws may leave it as it is: an odd value can be the right one."""
    whole = {sound.sound_gguf(kind).to_bytes() for kind in range(len(sound.GGUF_KINDS))}
    damaged = [damage_gguf(sound.sound_gguf(i % 3), random.Random(i))[0] for i in range(100)]
    assert sum(content in whole for content in damaged) <= 3
