"""Logs of any size: bounded memory, the right line numbers, pipes and devices."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cpu_time import cpu_seconds
from slipstream.diagnosis.logs import judge, marks_to_keep
from slipstream.parsing import log_reading
from slipstream.parsing.log_reading import read_log

CALM = b'(APIServer pid=1) INFO:     10.0.0.%d:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
BEGIN, ERROR = b"INFO vLLM API server version 0.15.1\n", b"(EngineCore pid=7) ERROR KeyError: 'x'\n"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reading, "KEPT", 10_000)
    monkeypatch.setattr(log_reading, "CHUNK", 2_000)


def calm(lines: int) -> bytes:
    return b"".join(CALM % (i % 256) for i in range(lines))


def write(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def test_a_small_log_is_whole(tmp_path):
    log = read_log(write(tmp_path / "log", b"a\nb\xff\nc"))
    assert (log.text, log.num_lines) == ("a\nb\ufffd\nc", 3)
    assert [log.line_number(at) for at in (0, 1, 2, 3, 5)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("before", [0, 10, 3_000, 6_000])
@pytest.mark.usefixtures("small")
def test_a_large_log_keeps_what_is_rare_with_its_line_number(tmp_path, before):
    path = write(tmp_path / "log", BEGIN, calm(before), ERROR, calm(6_000 - before))
    log = read_log(path)
    assert log.num_lines == 6_002 and len(log.text) < 50_000
    assert log.line_number(log.text.index("KeyError")) == before + 2


@pytest.mark.usefixtures("small")
def test_every_start_is_kept(tmp_path):
    path = write(tmp_path / "log", *(BEGIN + calm(1_000) for _ in range(5)))
    assert read_log(path, marks_to_keep()).text.count("vLLM API server version") == 5


@pytest.mark.usefixtures("small")
def test_lines_that_are_all_different_do_not_fill_the_memory(tmp_path):
    path = write(tmp_path / "log", *(os.urandom(50).replace(b"\n", b"") + b"\n" for _ in range(5_000)), ERROR)
    log = read_log(path)
    assert len(log.text) < 50_000 and log.line_number(log.text.index("KeyError")) == 5_001


@pytest.mark.usefixtures("small")
def test_a_line_without_an_end(tmp_path):
    log = read_log(write(tmp_path / "log", b"x" * 100_000))
    assert log.num_lines == 1 and len(log.text) < 50_000


def test_utf_16_from_powershell(tmp_path):
    assert read_log(write(tmp_path / "log", "a\r\nKeyError: 'ü'\r\n".encode("utf-16"))).text == "a\nKeyError: 'ü'\n"


def test_a_named_pipe_is_read_and_a_silent_one_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(log_reading, "PIPE_WAIT_S", 0.5)
    os.mkfifo(tmp_path / "pipe")
    assert read_log(tmp_path / "pipe").text == ""
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(ERROR))
    writer.start()
    monkeypatch.setattr(log_reading, "PIPE_WAIT_S", 10.0)
    assert read_log(tmp_path / "pipe").text == ERROR.decode()
    writer.join()


def test_a_device_without_an_end(monkeypatch):
    monkeypatch.setattr(log_reading, "MAX_READ", 20_000_000)
    assert read_log(Path("/dev/zero")).num_lines == 1


@pytest.mark.usefixtures("small")
def test_the_middle_of_a_file_that_is_too_large_is_left_out_and_this_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(log_reading, "MAX_READ", 50_000)
    path = write(tmp_path / "log", BEGIN, calm(600), b"OSError: middle\n", calm(6_000), b"OSError: skipped\n",
                 calm(6_000), ERROR)  # fmt: skip
    log = read_log(path)
    assert log.text.startswith(BEGIN.decode()) and log.text.endswith(ERROR.decode())
    assert "OSError: middle" in log.text and "OSError: skipped" not in log.text
    assert log.num_skipped == path.stat().st_size - 50_000 - 2 * 10_000
    report = judge(log)
    assert "0.0 GB in the middle left out" in report.checked and report.num_lines == log.num_lines < 1_000


def test_a_file_up_to_the_limit_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(log_reading, "KEPT", 10_000)
    monkeypatch.setattr(log_reading, "MAX_READ", 80_000)
    path = write(tmp_path / "log", BEGIN, calm(1_000), ERROR)
    assert 80_000 < path.stat().st_size < 100_000
    log = read_log(path)
    assert log.num_skipped == 0 and log.text.endswith(ERROR.decode())


def test_1_tb_of_zeros_takes_seconds(tmp_path):
    with (tmp_path / "log").open("wb") as file:
        file.truncate(10**12)
    started = cpu_seconds()
    log = read_log(tmp_path / "log", marks_to_keep())
    assert cpu_seconds() - started < 20 and log.num_skipped > 9.9e11


DOCTOR = r"""
import re, sys
from slipstream.tasks.doctor import DoctorOptions, doctor
from pathlib import Path
result = doctor(DoctorOptions(log=Path(sys.argv[1])))
print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1], result.is_unknown)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the most memory used is read from /proc")
def test_200_mb_take_seconds_and_bounded_memory(tmp_path):
    block = BEGIN + calm(100_000)
    path = write(tmp_path / "log", block * (200_000_000 // len(block)), ERROR)
    started = cpu_seconds()
    command = [sys.executable, "-c", DOCTOR, str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.split()
    assert cpu_seconds() - started < 20
    assert int(printed[0]) < 300_000 and printed[1] == "True"
