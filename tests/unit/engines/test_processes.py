"""Starting and ending: nothing is left running, whatever ends the one who started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.engines.client import Client, Timeouts
from slipstream.engines.engine_types import StartPlan
from slipstream.engines.ports import free_port, require_free_port
from slipstream.engines.process import EngineProcess, run_to_end, stop_detached
from slipstream.engines.readiness import wait_until_ready
from slipstream.errors import EngineStartError, MissingDependencyError
from slipstream.parsing.log_patterns import Stage, StartLog

# Writes its own pid and those of two workers; one worker left its session, as daemons do.
FAMILY = 'sleep 1000 & echo $! >> pids; (setsid sh -c "echo \\$\\$ >> pids; sleep 1000" &); echo $$ >> pids; sleep 1000'


def shell(text: str, cwd: Path | None = None) -> StartPlan:
    return StartPlan(("sh", "-c", text), cwd=str(cwd) if cwd else None)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def family(folder: Path) -> list[int]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pids = (folder / "pids").read_text().split() if (folder / "pids").exists() else []
        if len(pids) == 3:
            return [int(pid) for pid in pids]
        time.sleep(0.02)
    raise AssertionError("the family did not start")


def all_end(pids: list[int], within_s: float = 60) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(map(is_running, pids)):
            return True
        time.sleep(0.05)
    return False


def test_leaving_the_block_ends_the_engine_and_its_workers(tmp_path):
    with EngineProcess.start(shell(FAMILY, tmp_path), tmp_path) as process:
        pids = family(tmp_path)
        assert process.exit_code is None
    assert all_end(pids, 2)
    assert process.exit_code == 128 + signal.SIGTERM


def test_an_engine_that_ignores_the_request_to_end_is_killed_after_its_grace(tmp_path):
    stubborn = shell("trap '' TERM; echo up; while :; do sleep 0.1; done")
    with EngineProcess.start(stubborn, tmp_path, grace_s=0.3) as process:
        while "up" not in process.last_lines():
            time.sleep(0.02)
    assert process.exit_code == 128 + signal.SIGKILL


@pytest.mark.parametrize("killed_by", [signal.SIGKILL, signal.SIGTERM])
def test_no_orphans_when_the_parent_is_killed(tmp_path, killed_by):
    program = (
        "import sys, time; from pathlib import Path; from slipstream.engines.engine_types import StartPlan\n"
        "from slipstream.engines.process import EngineProcess\n"
        "plan = StartPlan(('sh', '-c', sys.argv[1]), cwd=sys.argv[2])\n"
        "EngineProcess.start(plan, Path(sys.argv[2])); time.sleep(1000)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, FAMILY, str(tmp_path)])
    pids = family(tmp_path)
    parent.send_signal(killed_by)
    parent.wait()
    assert all_end(pids)


def test_a_detached_engine_outlives_its_parent_and_is_ended_by_its_guard(tmp_path):
    program = (
        "import sys; from pathlib import Path; from slipstream.engines.engine_types import StartPlan\n"
        "from slipstream.engines.process import EngineProcess\n"
        "plan = StartPlan(('sh', '-c', sys.argv[1]), cwd=sys.argv[2])\n"
        "print(EngineProcess.start(plan, Path(sys.argv[2]), detached=True).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, FAMILY, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    pids = family(tmp_path)
    assert all(map(is_running, pids))
    stop_detached(int(done.stdout))
    assert all_end(pids, 2)


def test_the_log_is_read_line_by_line(tmp_path):
    with EngineProcess.start(
        shell("echo one; echo two; printf thr; sleep 0.5; echo ee; sleep 100"), tmp_path
    ) as process:
        seen: list[str] = []
        deadline = time.monotonic() + 60
        while "three" not in seen and time.monotonic() < deadline:
            seen += process.new_lines()
            time.sleep(0.05)
    assert seen == ["one", "two", "three"]


def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(
        MissingDependencyError, match=r"no-such-engine was not found on PATH.*pip install it.*--program"
    ):
        EngineProcess.start(StartPlan(("no-such-engine",), install="pip install it"), tmp_path)
    plan = StartPlan(("no-such-engine",), fallback=("sh", "-c", "echo instead; sleep 100"))
    with EngineProcess.start(plan, tmp_path) as process:
        deadline = time.monotonic() + 60
        while process.last_lines() != ["instead"] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.last_lines() == ["instead"]


def test_a_command_after_the_start_that_fails_says_its_last_words(tmp_path):
    with pytest.raises(EngineStartError, match=r"status 3(.|\n)*no such model"):
        run_to_end(("sh", "-c", "echo no such model; exit 3"), StartPlan(("x",)), tmp_path, 10)


READINESS = StartLog("/health", (Stage("loading", ("loading the weights",)), Stage("compiling", ("compiling",))))


def wait(process: EngineProcess, limit_s: float, say=lambda line: None, explain=lambda log: []):
    client = Client(f"http://127.0.0.1:{free_port()}", timeouts=Timeouts(figures_s=0.2))
    return wait_until_ready(process, client, READINESS, limit_s, say, explain)


def test_an_engine_that_hangs_at_its_start(tmp_path):
    """The stage, the limit, the log's last lines and the explanation are all in the message."""
    stages: list[str] = []
    with (
        EngineProcess.start(shell("echo loading the weights; echo compiling; sleep 100"), tmp_path) as process,
        pytest.raises(EngineStartError) as caught,
    ):
        wait(process, 1.0, stages.append, lambda log: [f"explained: {len(log.splitlines())} lines"])
    assert stages == ["loading", "compiling"]
    for part in ("not ready after 1 s", "the last stage: compiling", "  loading the weights", "explained: 2 lines"):
        assert part in str(caught.value)


def test_an_engine_that_ends_at_its_start(tmp_path):
    with (
        EngineProcess.start(shell("echo CUDA out of memory; exit 7"), tmp_path) as process,
        pytest.raises(EngineStartError, match=r"status 7(.|\n)*CUDA out of memory"),
    ):
        wait(process, 30)


def test_a_taken_port_names_its_owner():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EngineStartError, match=rf"port {port} is in use by .*pid {os.getpid()}.*--port"):
            require_free_port("127.0.0.1", port)
    require_free_port("127.0.0.1", free_port())
