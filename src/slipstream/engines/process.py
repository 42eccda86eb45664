"""EngineProcess: an engine as a child process, with its log in a file; it is stopped when its owner ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from slipstream.child import stdlib_script
from slipstream.engines import guard
from slipstream.engines.engine_types import StartPlan
from slipstream.engines.secrets import redacted
from slipstream.errors import EngineStartError, MissingDependencyError
from slipstream.writing import PRIVATE, write_whole

GRACE_S = 15.0
_TAIL_BYTES = 64 * 1024


class EngineProcess:
    """A running engine. As a context manager, it is always stopped at the end of the block.

    It runs under a guard (see guard.py) in its own session: Ctrl-C on the terminal reaches only Slipstream. When
    Slipstream ends for any reason, including kill -9, the guard stops the engine and all its processes.
    """

    def __init__(self, child: subprocess.Popen[bytes], log: Path, grace_s: float) -> None:
        self.log = log
        self._grace_s = grace_s
        self._child = child
        self._read_up_to = 0
        self._partial_line = ""

    @classmethod
    def start(cls, plan: StartPlan, folder: Path, *, detached: bool = False, grace_s: float = GRACE_S) -> EngineProcess:
        """Writes the plan's files into `folder` and starts it; its log is there too.

        Does not wait until it is ready (see readiness.py). `detached`: it keeps running after this process. `grace_s`:
        seconds between the request to stop and the kill. Raises MissingDependencyError if the program is not installed.
        """
        plan = find_program(plan)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in plan.files.items():
            write_whole(folder / name, text)
        for name, text in plan.secret_files.items():
            write_whole(folder / name, text, PRIVATE)
        log = folder / "engine.log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                [*_guard("detached" if detached else "attached", grace_s), *plan.argv],
                stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(plan),
                cwd=plan.cwd,
                start_new_session=True,
            )
        return cls(child, log, grace_s)

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The guard's pid: SIGTERM to it stops the engine."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + the signal number if it was ended by a signal."""
        return self._child.poll()

    def new_lines(self) -> list[str]:
        """Complete lines of the log since the last call."""
        with self.log.open("rb") as file:
            file.seek(self._read_up_to)
            data = file.read()
        self._read_up_to += len(data)
        *lines, self._partial_line = (self._partial_line + data.decode(errors="replace")).split("\n")
        return lines

    def last_lines(self, count: int = 15) -> list[str]:
        return tail(self.log, count)

    def stop(self) -> None:
        """Stops the engine and all its processes. Does nothing if it has already exited."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        if self._child.stdin:
            self._child.stdin.close()
        try:
            self._child.wait(self._grace_s + 10)
        except subprocess.TimeoutExpired:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()

    def release(self) -> None:
        """Leaves a detached engine running; this process no longer waits for it."""
        self._child.returncode = 0  # Popen warns about a child that still runs when it is deleted; this is intended


def stop_detached(pid: int) -> None:
    """Stops an engine that was started `detached`, by its guard's pid. Does nothing if it has already exited."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S + 10
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.05)
        os.killpg(pid, signal.SIGKILL)


def tail(log: Path, count: int) -> list[str]:
    """The last lines of a log; empty if there is no log."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace").rstrip("\n").splitlines()[-count:]


def indented(lines: Iterable[str]) -> str:
    """Lines of a log, as they stand below what is said of it."""
    return "\n".join(f"  {line}" for line in lines)


def _environment(plan: StartPlan) -> dict[str, str]:
    return os.environ | dict(plan.env) | dict(plan.secret_env)


def _guard(mode: str, grace_s: float) -> list[str]:
    return stdlib_script(Path(guard.__file__), mode, str(grace_s))


def find_program(plan: StartPlan) -> StartPlan:
    """The plan with an installed program. Raises MissingDependencyError, which says how to install it."""
    if shutil.which(plan.program[0]):
        return plan
    if plan.fallback:
        return replace(plan, program=plan.fallback)
    how = f" Install it ({plan.install}), or" if plan.install else ""
    raise MissingDependencyError(f"{plan.program[0]} was not found on PATH.{how} name it with --program.")


def run_to_end(command: tuple[str, ...], plan: StartPlan, folder: Path, limit_s: float) -> None:
    """Runs a command of the plan in its environment. Raises EngineStartError with its last lines if it fails."""
    log, shown = folder / f"{Path(command[0]).name}.log", " ".join(redacted(command))
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, env=_environment(plan), cwd=plan.cwd,
                timeout=limit_s, check=False,
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineStartError(f"{shown} failed: {error}") from error
    if done.returncode:
        raise EngineStartError(f"{shown} ended with status {done.returncode}:\n{indented(tail(log, 5))}")
