"""Supervisor: runs workers one after the other, so that a crash or a hang is a failure of one case only."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fuzz.checks import Failure
from fuzz.run_case import CaseResult
from fuzz.worker import CASE_LIMIT_S

_SILENCE_S = CASE_LIMIT_S + 60.0  # a worker ends itself before that
_MAX_DETAIL = 2000  # characters of what a dying worker said


@dataclass(frozen=True)
class WorkerOptions:
    backend: str
    scenarios: tuple[str, ...] = ()
    mutation: str | None = None
    models: Path | None = None

    def command(self, first: int, count: int | None) -> list[str]:
        command = [sys.executable, "-m", "fuzz", "worker", "--backend", self.backend, "--first", str(first)]
        command += ["--count", str(count)] if count is not None else []
        command += ["--models", str(self.models)] if self.models else []
        command += ["--mutation", self.mutation] if self.mutation else []
        return command + [part for scenario in self.scenarios for part in ("--scenario", scenario)]


def run_cases(options: WorkerOptions, first: int, count: int | None, seconds: float | None) -> Iterator[CaseResult]:
    """Results of the cases `first`, `first` + 1, … until `count` are done or `seconds` have passed."""
    ends = None if seconds is None else time.monotonic() + seconds
    seed = first
    while (count is None or seed < first + count) and (ends is None or time.monotonic() < ends):
        left = None if count is None else first + count - seed
        for result in _one_worker(options, seed, left, ends):
            seed = result.seed + 1
            yield result


def _one_worker(options: WorkerOptions, first: int, count: int | None, ends: float | None) -> Iterator[CaseResult]:
    """Results until the worker dies, hangs or is done. What it was at when it died becomes a failed result."""
    with _started(options.command(first, count)) as (process, errors):
        current, made, is_silent = first, dict[str, Any](), False
        for line in _lines(process):
            if line is None:
                is_silent = True
                break
            if "start" in line:
                current, made = line["start"], {}
            elif "made" in line:
                made = line
            elif "done" in line:
                yield _result(line)
                current += 1
                if ends is not None and time.monotonic() > ends:
                    return
        process.kill() if is_silent else None
        code = process.wait()
        if code == 0 and not is_silent:
            return
        errors.seek(0)
        yield _death(current, made, code, is_silent, errors.read().decode(errors="replace"))


@contextmanager
def _started(command: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    root = Path(__file__).parents[2]
    own = [str(root / name) for name in ("tests", "tools", "src")]
    path = os.pathsep.join([*own, os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            env=os.environ | {"PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"},
        )  # fmt: skip
        try:
            yield process, errors
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _lines(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any] | None]:
    """What the worker says, and None once where it is silent for too long."""
    assert process.stdout is not None
    pipe, rest = process.stdout.fileno(), b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(_SILENCE_S):
                yield None
                return
            piece = os.read(pipe, 1 << 16)
            if not piece:
                return
            *whole, rest = (rest + piece).split(b"\n")
            yield from (json.loads(line) for line in whole if line.startswith(b"{"))


def _result(line: dict[str, Any]) -> CaseResult:
    failures = [Failure(**failure) for failure in line["failures"]]
    return CaseResult(line["seed"], line["scenario"], line["num_generations"], failures, line["description"])


def _death(seed: int, made: dict[str, Any], code: int, is_silent: bool, said: str) -> CaseResult:
    if is_silent or "Timeout (" in said:
        check = "hang: the process had to be ended"
    elif code < 0:
        check = f"crash: {signal.Signals(-code).name}"
    else:
        check = f"worker ended with exit code {code}"
    start = max(said.find("Fatal Python error"), said.find("Timeout ("), 0)
    failure = Failure(check, said[start : start + _MAX_DETAIL] if start else said[-_MAX_DETAIL:])
    return CaseResult(seed, made.get("scenario", "making"), 0, [failure], made.get("description", ""))
