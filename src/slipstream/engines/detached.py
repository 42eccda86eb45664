"""Detached engines, recorded in the cache so that they can be listed and stopped later."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from slipstream.cache import cache_path
from slipstream.writing import write_whole

_FILE = "state.json"


@dataclass(frozen=True, slots=True)
class Detached:
    engine: str
    pid: int  # of the guard
    url: str
    model: str
    method: str
    log: str
    started: str  # ISO date and time


def remember(engine: Detached) -> None:
    """Next to the engine's log."""
    write_whole(Path(engine.log).with_name(_FILE), json.dumps(asdict(engine)))


def forget(engine: Detached) -> None:
    Path(engine.log).with_name(_FILE).unlink(missing_ok=True)


def detached_engines() -> list[Detached]:
    """The engines that still run. Records of others are removed."""
    found = []
    for path in sorted(cache_path("engines").glob(f"*/{_FILE}")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            engine = Detached(**json.loads(path.read_text()))
            if _runs(engine.pid):
                found.append(engine)
            else:
                path.unlink(missing_ok=True)
    return found


def _runs(pid: int) -> bool:
    """Whether this process is a guard: the pid may have been reused."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    command = Path(f"/proc/{pid}/cmdline")
    return not command.exists() or b"guard.py" in command.read_bytes()
