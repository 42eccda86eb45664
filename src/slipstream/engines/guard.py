"""Guard: runs an engine and stops all of its processes when the owner ends. A separate program, standard library only.

    python guard.py attached|detached GRACE_S COMMAND...

The guard runs between Slipstream and the engine. It stops the engine when its standard input closes (`attached`:
Slipstream ended, crashed or was killed) or on SIGTERM, and cleans up when the engine exits by itself. It exits with the
engine's status. A death signal on the engine alone (PR_SET_PDEATHSIG) would not reach the workers that engines start.
On Linux the guard adopts workers that lose their parent, so it can stop all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05


def main() -> int:
    attached, grace_s, command = sys.argv[1] == "attached", float(sys.argv[2]), sys.argv[3:]
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: over.set())
    _adopt_orphans()
    try:
        engine = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"can't run {command[0]}: {error.strerror}", flush=True)
        return 127
    _then(engine.wait, over)
    if attached:
        _then(lambda: os.read(0, 1), over)  # not sys.stdin: Python would wait for its lock at exit
    over.wait()
    _end(engine, grace_s)
    status = engine.wait()
    return status if status >= 0 else 128 - status


def _then(wait: Callable[[], object], over: threading.Event) -> None:
    def run() -> None:
        wait()
        over.set()

    threading.Thread(target=run, daemon=True).start()


def _end(engine: subprocess.Popen[bytes], grace_s: float) -> None:
    """Asks the engine to stop, so that it can stop its own workers; processes left after the grace period are
    killed.
    """
    with contextlib.suppress(ProcessLookupError):
        engine.terminate()
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and engine.poll() is None:
        time.sleep(_POLL_S)
    for _ in range(100):  # a worker may start another while it is being killed
        left = _descendants(os.getpid())
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
        _reap(engine)


def _reap(engine: subprocess.Popen[bytes]) -> None:
    """Reaps adopted workers that exited, so that they don't count as running. Popen reads the engine's own status."""
    engine.poll()
    if engine.returncode is None:
        return
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _descendants(root: int) -> list[int]:
    """All running descendants of `root`; on systems other than Linux, the processes of its group."""
    if sys.platform != "linux":
        listed = subprocess.run(["ps", "-o", "pid=", "-g", str(os.getpgid(0))], capture_output=True, text=True)
        return [pid for pid in map(int, listed.stdout.split()) if pid != root]
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(stat.parent.name)] = int(parent)
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found


if __name__ == "__main__":
    sys.exit(main())
