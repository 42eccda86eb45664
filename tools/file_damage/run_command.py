"""One command in a forked child with limits on processor time, wall time and address space."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

CPU_LIMIT_S, WALL_LIMIT_S, MEMORY_LIMIT = 5.0, 10.0, 500 << 20
_LOOK_AGAIN_S, _MAX_LOOKS = 5.0, 60
_MAX_OUTPUT = 64 << 20  # a command that prints without end does not fill the disk
# Whether Pythons that a command starts are started, or forked from the prepared process: nine times as fast.
REAL_CHILDREN = "FUZZ_REAL_CHILDREN" in os.environ
_NOT_OURS = ("site-packages", "lib/python3")


@dataclass(frozen=True)
class Allowance:
    """What the command costs with a sound file: limits count from there."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """`code` is the exit code, None if it was stopped. `error` describes an exception that no one caught."""

    code: int | None
    signal: int
    stopped: bool
    error: str
    stdout: str
    stderr: str
    cpu_s: float
    wall_s: float
    peak_bytes: int


def prepare() -> None:
    """Imports what the commands need, and measures the machine, which is remembered: children only examine files."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "120", "NO_COLOR": "1"}
    os.environ["GGML_NO_BACKTRACE"] = "1"  # an abort would start a debugger, which takes longer than all else
    for name in ("gguf", "jinja2", "tokenizers", "torch", "safetensors.torch", "llama_cpp"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)

    import slipstream.cli  # noqa: F401
    from slipstream.predict import machine

    machine.copy_bandwidth()
    about_llama_cpp = machine.installed_llama_cpp()  # another process for each question
    machine.installed_llama_cpp = lambda: about_llama_cpp


def import_like(arguments: tuple[str, ...], folder: Path) -> None:
    """Imports what this command imports on its way: the children that follow need not."""
    with tempfile.NamedTemporaryFile("r") as names:
        pid = os.fork()
        if pid == 0:
            with open(os.devnull, "w+b") as nothing:  # noqa: PTH123
                _child(arguments, folder, Allowance(120), (nothing, nothing, nothing), Path(names.name))
        os.waitpid(pid, 0)
        for name in names.read().split():
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.freeze()


def run_command(arguments: tuple[str, ...], folder: Path, allowance: Allowance, slack: float = 1.0) -> Outcome:
    """Runs `slipstream ARGUMENTS` in `folder`. `slack` is how many times the wall time is allowed."""
    with (
        tempfile.TemporaryFile("w+b") as out,
        tempfile.TemporaryFile("w+b") as err,
        tempfile.TemporaryFile("w+b") as note,
    ):
        started = os.times().elapsed
        pid = os.fork()
        if pid == 0:
            _child(arguments, folder, allowance, (out, err, note))
        stopped = not _wait(pid, (WALL_LIMIT_S + allowance.wall_s) * slack)
        _kill_group(pid)
        _, status, usage = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return Outcome(
            code=None if stopped or code < 0 else code,
            signal=-code if code < 0 else 0,
            stopped=stopped or code in (-signal.SIGXCPU, -signal.SIGKILL),
            error=_text(note),
            stdout=_text(out),
            stderr=_text(err),
            cpu_s=usage.ru_utime + usage.ru_stime,
            wall_s=os.times().elapsed - started,
            peak_bytes=usage.ru_maxrss * 1024,
        )


def load_factor() -> float:
    """How many times longer a process has to wait on a busy machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _wait(pid: int, seconds: float) -> bool:
    """Whether it ended in time. Leaves it to be waited for.

    While it computes, its limit is processor time: on a busy machine that may take much longer.
    """
    handle = os.pidfd_open(pid)
    try:
        used = -1.0
        for limit in (seconds, *[_LOOK_AGAIN_S] * _MAX_LOOKS):
            if select.select([handle], [], [], limit)[0]:
                return True
            before, used = used, _group_cpu_s(pid)
            if used <= before:
                return False
        return False
    finally:
        os.close(handle)


def _group_cpu_s(group: int) -> float:
    """Processor time of all processes of a group."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text().rpartition(") ")[2].split()
            ticks += int(fields[11]) + int(fields[12]) if int(fields[2]) == group else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _kill_group(pid: int) -> None:
    """What the child started ends with it."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


# -- in the child -----------------------------------------------------------------------------------------------------


def _child(
    arguments: tuple[str, ...],
    folder: Path,
    allowance: Allowance,
    files: tuple[IO[bytes], ...],
    modules: Path | None = None,
) -> None:
    """Never returns. `modules` gets the names of what is imported in the end."""
    code = 70
    try:
        os.setpgid(0, 0)
        _redirect(files[0].fileno(), files[1].fileno())
        os.chdir(folder)
        _limit(allowance)
        code = _call(arguments, files[2])
        if modules:
            modules.write_text("\n".join(name for name in sys.modules if name != "__main__"))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _redirect(out: int, err: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115


def _limit(allowance: Allowance) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + MEMORY_LIMIT
    seconds = int(CPU_LIMIT_S + allowance.cpu_s) + 2  # judged by what was used; this stops what would not end
    for what, limit in (
        (resource.RLIMIT_AS, space),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, _MAX_OUTPUT),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit + 1))  # the soft one first: it says why


def _call(arguments: tuple[str, ...], note: IO[bytes]) -> int:
    """The exit code. An exception that the command line lets through is noted, as a traceback would show it."""
    from slipstream.cli import main

    sys.argv = ["slipstream", *arguments]
    if not REAL_CHILDREN:
        subprocess.Popen = _ForkedPython  # type: ignore[misc]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException as error:
        note.write(json.dumps(_describe(error)).encode())
        note.flush()
        return 1
    return 0


def _describe(error: BaseException) -> dict[str, str]:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if not any(part in frame.filename for part in _NOT_OURS)]
    place = ours[-1] if ours else frames[-1]
    name = place.filename.rpartition("slipstream/")[2]
    chain = "".join(traceback.format_exception(error, limit=-12))
    return {
        "type": type(error).__name__,
        "place": f"{name}:{place.name}",
        "line": f"{name}:{place.lineno}",
        "message": str(error)[:300],
        "memory": str(isinstance(error, MemoryError)),
        "traceback": chain[-4000:],
    }


class _ForkedPython(subprocess.Popen[Any]):
    """`python -c PROGRAM` in a fork of this process, which has imported torch already; other commands as they are."""

    def __init__(self, args: Any, *others: Any, **options: Any) -> None:
        if isinstance(args, list) and args[0] == sys.executable and args[1] in ("-c", "-P"):
            words = [word for word in args[1:] if word != "-P"]
            if words[0] == "-c":
                options["preexec_fn"] = lambda: _run_program(words[1], words[2:])
        super().__init__(args, *others, **options)


def _run_program(program: str, arguments: list[str]) -> None:
    """Never returns. Called between fork and exec; closing all other files tells the parent that it has started."""
    code = 1
    try:
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0] & 0xFFFF)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
        sys.argv = ["-c", *arguments]
        exec(program, {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
