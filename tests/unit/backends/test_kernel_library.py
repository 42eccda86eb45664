"""Building the CPU kernels: on any machine, by any number of processes, and what happens where it can't be done."""

from __future__ import annotations

import logging
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.backends.torch.cpu import library

LOAD = "from slipstream.backends.torch.cpu.library import kernels; assert kernels() is not None"


@pytest.fixture(autouse=True)
def a_machine_that_has_built_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    library.kernels.cache_clear()
    yield tmp_path / "cache" / "kernels"
    library.kernels.cache_clear()


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_without_a_compiler_there_are_no_kernels_and_one_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert library.kernels() is None
    assert library.kernels() is None
    (message,) = warnings_of(caplog)
    assert "no C compiler found" in message
    assert "Install gcc" in message


def test_a_cc_that_is_not_there_means_no_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    assert library.kernels() is None
    assert "no-such-compiler" in warnings_of(caplog)[0]


def test_a_compile_error_is_told_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    a_machine_that_has_built_nothing: Path,
) -> None:
    monkeypatch.setenv("CC", str(script(tmp_path / "cc", "echo 'this is beyond me' >&2; exit 1")))
    assert library.kernels() is None
    assert "this is beyond me" in warnings_of(caplog)[0]
    assert list(a_machine_that_has_built_nothing.iterdir()) == []


def test_a_compiler_without_openmp_still_builds_working_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = script(tmp_path / "cc", 'case "$*" in *-fopenmp*) exit 1;; esac; exec gcc "$@"')
    monkeypatch.setenv("CC", str(compiler))
    assert library.kernels() is not None


def test_cc_may_carry_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "env gcc")
    assert library.kernels() is not None


def test_the_second_process_finds_what_the_first_one_built(a_machine_that_has_built_nothing: Path) -> None:
    assert library.kernels() is not None
    (built,) = a_machine_that_has_built_nothing.iterdir()
    before = built.stat().st_mtime_ns
    subprocess.run([sys.executable, "-c", LOAD], check=True)
    assert list(a_machine_that_has_built_nothing.iterdir()) == [built]
    assert built.stat().st_mtime_ns == before


def test_two_processes_build_at_the_same_time(a_machine_that_has_built_nothing: Path) -> None:
    builders = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(2)]
    assert [b.wait(timeout=120) for b in builders] == [0, 0]
    (built,) = a_machine_that_has_built_nothing.iterdir()
    assert built.suffix == ".so"


def test_a_cache_that_cannot_be_written_means_no_kernels(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(library.tempfile, "TemporaryDirectory", refuse)
    assert library.kernels() is None
    assert "Permission denied" in warnings_of(caplog)[0]
