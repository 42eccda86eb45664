"""Building the CPU kernels: on any machine, by any number of processes, and what happens where it can't be done.
What is in the cache is loaded only if it is what was built."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract import tiny_models
from slipstream.backends.torch import code_cache
from slipstream.backends.torch.cpu import library
from slipstream.host import c_compiler

LOAD = "from slipstream.backends.torch.cpu.library import kernels; assert kernels() is not None"


@pytest.fixture(autouse=True)
def a_machine_that_has_built_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    library.kernels.cache_clear()
    yield tmp_path / "cache" / "kernels"
    library.kernels.cache_clear()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library._compile(c_compiler(), library.kernel_source(), tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def copying_compiler(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that takes no time. Returns its log, a line for each run."""
    log = tmp_path / "compiler.log"
    body = f'echo run >> {log}; while [ "$1" != -o ]; do shift; done; cp {compiled} "$2"'
    monkeypatch.setenv("CC", str(script(tmp_path / "cc", body)))
    return log


def load_in_a_process() -> str:
    """What it says on stderr. A process of its own, since loading a damaged library may end it."""
    return subprocess.run([sys.executable, "-c", LOAD], check=True, capture_output=True, text=True).stderr


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
    assert "several times slower" in message and "the answer may differ" in message
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


def test_without_any_folder_to_write_there_are_no_kernels(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(library.tempfile, "TemporaryDirectory", refuse)
    assert library.kernels() is None
    assert "Permission denied" in warnings_of(caplog)[0]


def test_a_cache_that_cannot_be_written_means_kernels_for_this_run(
    copying_compiler: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, data: str | bytes, mode: int) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(code_cache, "write_whole", refuse)
    assert library.kernels() is not None
    (message,) = warnings_of(caplog)
    assert "at every start" in message and "Permission denied" in message


def test_a_cache_that_cannot_be_made_means_kernels_for_this_run(
    copying_compiler: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "file" / "cache"))
    assert library.kernels() is not None
    (message,) = warnings_of(caplog)
    assert "at every start" in message and "SLIPSTREAM_CACHE" in message


# -- what is in the cache ---------------------------------------------------------------------------------------------


def truncate(built: Path) -> None:
    """The beginning of an ELF file: mapping it works, touching the rest is a SIGBUS."""
    os.truncate(built, 9000)


def fill_with_garbage(built: Path) -> None:
    built.write_bytes(b"garbage" * 3000)


def empty(built: Path) -> None:
    built.write_bytes(b"")


def flip_a_bit(built: Path) -> None:
    data = bytearray(built.read_bytes())
    data[len(data) // 2] ^= 1
    built.write_bytes(bytes(data))


def let_everybody_write(built: Path) -> None:
    built.chmod(0o666)


def let_the_group_write(built: Path) -> None:
    built.chmod(0o664)


def give_to_another_user(built: Path) -> None:
    os.chown(built, 54321, -1)


def replace_by_a_link(built: Path) -> None:
    elsewhere = built.parent.parent / "elsewhere.so"
    built.rename(elsewhere)
    built.symlink_to(elsewhere)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize(
    "spoil",
    [
        truncate,
        fill_with_garbage,
        empty,
        flip_a_bit,
        let_everybody_write,
        let_the_group_write,
        pytest.param(give_to_another_user, marks=as_root),
        replace_by_a_link,
    ],
)
def test_a_library_that_may_not_be_what_was_built_is_built_again(
    spoil: Callable[[Path], None],
    copying_compiler: Path,
    a_machine_that_has_built_nothing: Path,
) -> None:
    load_in_a_process()
    (built,) = a_machine_that_has_built_nothing.iterdir()
    sound = built.read_bytes()
    spoil(built)
    assert "compiled again" in load_in_a_process()
    assert load_in_a_process() == ""
    assert len(copying_compiler.read_text().splitlines()) == 2
    assert list(a_machine_that_has_built_nothing.iterdir()) == [built]
    assert built.read_bytes() == sound and not built.is_symlink()
    assert (built.stat().st_uid, stat.S_IMODE(built.stat().st_mode)) == (os.geteuid(), 0o644)


def test_a_folder_that_the_group_can_write_is_closed(
    copying_compiler: Path, a_machine_that_has_built_nothing: Path
) -> None:
    a_machine_that_has_built_nothing.mkdir(parents=True)
    a_machine_that_has_built_nothing.chmod(0o775)  # as mkdir makes it where the umask is 002
    assert load_in_a_process() == load_in_a_process() == ""
    assert len(copying_compiler.read_text().splitlines()) == 1
    assert stat.S_IMODE(a_machine_that_has_built_nothing.stat().st_mode) == 0o755


@as_root
def test_a_folder_of_another_user_is_not_used(copying_compiler: Path, a_machine_that_has_built_nothing: Path) -> None:
    load_in_a_process()
    os.chown(a_machine_that_has_built_nothing, 54321, -1)
    assert "belongs to another user" in load_in_a_process()
    assert len(copying_compiler.read_text().splitlines()) == 2


CROWDED = """
import os, sys, time, slipstream
from contextlib import suppress
engine = slipstream.load(sys.argv[1], drafter="none", options=slipstream.TorchOptions(device="cpu"))
engine.generate([1, 2, 3], max_tokens=4, ignore_eos=True).result()
for thread in os.listdir("/proc/self/task"):
    with suppress(ProcessLookupError):
        os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})
began = time.process_time()
engine.generate([1, 2, 3], max_tokens=60, ignore_eos=True).result()
print(time.process_time() - began, engine.target._runner._ops._lib.slip_team())
"""


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="moves threads to one core")
def test_a_thread_that_waits_for_another_lets_it_have_the_core_and_soon_works_alone(tmp_path: Path) -> None:
    """As where other programs have the cores. 60 tokens have 2,000 waits: with those of OpenMP, which keep the core for
    milliseconds, they take 5 s instead of 0.2."""
    folder = tiny_models.save_folder(tiny_models.make_model("llama2-mha", num_hidden_layers=4), tmp_path / "model")
    run = subprocess.run(
        [sys.executable, "-c", CROWDED, str(folder)],
        capture_output=True, text=True, timeout=300, check=True, env=os.environ | {"OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    seconds, num_working = run.stdout.split()
    assert float(seconds) < 1.5 and num_working == "1"
