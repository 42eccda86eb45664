"""`slipstream serve` as a process: its start, its keys, and its end under load."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.real_model
KEY = "very-secret-key"
DRAIN_S = 2


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    command = [sys.executable, "-m", "slipstream", "serve", "--port", "0", "--drain-limit", str(DRAIN_S)]
    with subprocess.Popen([*command, "--api-key", KEY], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(3)]
        assert "loading" in said[0] and "measuring" in said[1] and KEY not in "".join(said)
        try:
            yield process, said[2].split("serving at ")[1].split()[0]
        finally:
            process.kill()


def ask(url: str, max_tokens: int, events: list[dict[str, Any]]) -> None:
    """Adds the events of a stream; "[DONE]" and the end of the connection are not added."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=100)
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            events.append(json.loads(line.removeprefix(b"data: ")))


def test_sigterm_lets_answers_finish_or_ends_them_with_an_error(server):
    process, url = server
    if Path("/proc").is_dir():
        assert KEY.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    short: list[dict[str, Any]] = []
    long: list[dict[str, Any]] = []
    threads = [threading.Thread(target=ask, args=given) for given in ((url, 8, short), (url, 4000, long))]
    for thread in threads:
        thread.start()
    while not (short and long):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    for thread in threads:
        thread.join()
    rest = process.communicate(timeout=DRAIN_S + 60)[1]  # a busy machine; it waits for answers for DRAIN_S
    assert process.returncode == 0, rest
    assert "stopping; " in rest and f"up to {DRAIN_S} s to end" in rest
    assert short[-1]["choices"][0]["finish_reason"] == "length"
    assert long[-1]["error"]["code"] == "shutting_down"
    assert not any(event["choices"][0]["finish_reason"] for event in long[:-1])
    assert KEY not in rest


@pytest.mark.parametrize(
    ("words", "variable", "message"),
    [
        (["--api-key", ""], None, "key 1 of --api-key is too short"),
        (["--api-key", "good-key-1", "--api-key=two words"], None, "key 2 of --api-key has odd characters"),
        ([], "good-key-1 short", "key 2 of SLIPSTREAM_API_KEY is too short"),
        ([], "", "SLIPSTREAM_API_KEY holds no API key"),
    ],
)
def test_a_given_key_that_protects_nothing_is_refused(words, variable, message):
    environment = os.environ | ({} if variable is None else {"SLIPSTREAM_API_KEY": variable})
    command = [sys.executable, "-m", "slipstream", "serve", "--port", "0", *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert message in " ".join(ended.stderr.split())
    assert "good-key-1" not in ended.stderr
