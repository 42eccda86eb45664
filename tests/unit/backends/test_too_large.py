"""Models that do not fit in memory are refused before anything is read."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fake_models
import slipstream
from fake_models import FakeShape
from slipstream import backends
from slipstream.errors import CapacityError
from slipstream.host import IGNORE_MEMORY
from slipstream.load_checks import ModelToLoad, refuse_too_large

LARGE = FakeShape(126, 16384, 128, 8, 53248)  # 228 GB in Q4_K
SMALL = FakeShape(4, 512, 8, 4, 1024, 4096)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    if fake_models.needs_room(tmp_path):
        pytest.skip("this file system has no sparse files")
    return fake_models.write_gguf(tmp_path / "large.gguf", LARGE)


def test_a_file_larger_than_memory_is_refused_in_no_time(large: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slipstream", "generate", "-m", str(large), "--device", "cpu", "Hello"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "fit-memory" in done.stderr and "of main memory free" in done.stderr and IGNORE_MEMORY in done.stderr
    assert large.stat().st_blocks * 512 < 64 << 20  # and nothing was written to it


@pytest.mark.parametrize("backend", ["torch", pytest.param("llamacpp", marks=pytest.mark.llamacpp)])
def test_the_draft_counts_before_the_target_is_read(
    large: Path, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = fake_models.write_gguf(tmp_path / "small.gguf", SMALL)
    options = backends.BACKENDS[backend].options(backends.MachineOptions(device="cpu"))
    monkeypatch.setitem(backends.BACKENDS, backend, _never_loading(backend))
    with pytest.raises(CapacityError, match="fit-memory"):
        slipstream.load(small, draft=large, options=options)
    refuse_too_large(ModelToLoad(small, options))


def _never_loading(backend: str) -> backends.Backend:
    def load(*_: object) -> None:
        raise AssertionError("a model was read")

    known = backends.BACKENDS[backend]
    return replace(known, load=load)  # type: ignore[arg-type]


def test_whoever_insists_is_let_through(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IGNORE_MEMORY, "1")
    refuse_too_large(ModelToLoad(large))
    monkeypatch.setenv(IGNORE_MEMORY, "0")
    with pytest.raises(CapacityError):
        refuse_too_large(ModelToLoad(large))


@pytest.mark.llamacpp
def test_a_context_that_was_asked_for_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = fake_models.write_gguf(tmp_path / "long.gguf", FakeShape(4, 512, 8, 8, 1024, 1 << 28))
    options = backends.BACKENDS["llamacpp"].options(backends.MachineOptions(device="cpu", context_length=1 << 28))
    with pytest.raises(CapacityError, match="Use a context of"):
        refuse_too_large(ModelToLoad(long, options))
    refuse_too_large(ModelToLoad(long))  # left out, the cache takes what there is
