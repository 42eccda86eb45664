"""Load on a running server: many streaming clients, some of which leave, are cancelled, killed, or read slowly.

    python tools/load_server.py --url http://127.0.0.1:8000 --clients 64 --requests 500
    python tools/load_server.py --url … --clients 16 --requests 64 --faults 0 --speculation off --json

Every answer that was read to its end is compared with the text of the same request sent alone at the beginning. With
faults, the share given by --faults of the requests misbehaves: a quarter each disconnects, is cancelled after some
tokens, is sent by a process that is killed with SIGKILL, and reads with pauses. At the end no place may be taken, and
the server's memory may not have grown by more than 5 %. Exit code 1 if anything of that is not so.

Works with any OpenAI-compatible server; the checks of places and memory need Slipstream's /metrics.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

TOPICS = ("the sea", "a small town", "bees", "how bread is made", "the moon", "a long train ride", "maps", "winter")
TASKS = ("Write a short text about {}.", "List ten words about {}, then the same list again.", "Explain {} to a child.")
FAULTS = ("disconnect", "cancel", "kill", "slow")
SPECULATION: dict[str, dict[str, Any]] = {"auto": {}, "on": {"max_draft": 4}, "off": {"enabled": False}}
MAX_GROWTH = 0.05  # of memory
SETTLE_S = 10.0


@dataclass(frozen=True)
class LoadSettings:
    url: str
    clients: int
    requests: int
    max_tokens: int
    faults: float
    speculation: str  # auto, on, off; none: the field is not sent
    seed: int
    key: str | None


@dataclass
class Tally:
    """What happened, over all clients."""

    first_token_s: list[float] = field(default_factory=list)
    inter_token_s: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def bodies(settings: LoadSettings) -> list[dict[str, Any]]:
    """The different requests: half of them greedy, half sampled with a seed."""
    prompts = [task.format(topic) for topic in TOPICS for task in TASKS]
    found = []
    for i, prompt in enumerate(prompts):
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": settings.max_tokens,
            "temperature": 0.8 * (i % 2),
            "seed": i,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        found.append(
            body | ({} if settings.speculation == "none" else {"speculation": SPECULATION[settings.speculation]})
        )
    return found


class Stream:
    """One streamed answer over a connection of its own."""

    def __init__(self, settings: LoadSettings, body: dict[str, Any]) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(settings.url).netloc, timeout=600)
        headers = {"Content-Type": "application/json"}
        if settings.key:
            headers["Authorization"] = f"Bearer {settings.key}"
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        self.num_tokens = 0

    def texts(self) -> Iterator[str]:
        """Raises RuntimeError for an error, or an end without [DONE]. The server answers with the first token."""
        response = self.connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {response.read(300)!r}")
        for line in response:
            data = line.removeprefix(b"data: ").strip()
            if not line.startswith(b"data: "):
                continue
            if data == b"[DONE]":
                return
            event = json.loads(data)
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            self.num_tokens = (event.get("usage") or {}).get("completion_tokens") or self.num_tokens
            for choice in event["choices"]:
                if text := choice["delta"].get("content"):
                    yield text
        raise RuntimeError("the stream ended early")

    def close(self) -> None:
        self.connection.close()


def whole_text(settings: LoadSettings, body: dict[str, Any]) -> str:
    stream = Stream(settings, body)
    try:
        return "".join(stream.texts())
    finally:
        stream.close()


def read_well(settings: LoadSettings, body: dict[str, Any], expected: str, tally: Tally, pause_s: float = 0.0) -> str:
    """Reads to the end and compares. Latencies of slow readers are their own, and not counted."""
    started = time.perf_counter()
    stream, parts, times = Stream(settings, body), [], []
    try:
        for text in stream.texts():
            parts.append(text)
            times.append(time.perf_counter())
            time.sleep(pause_s)
    finally:
        stream.close()
    with tally.lock:
        tally.num_tokens += stream.num_tokens or len(parts)
        if not pause_s:
            tally.first_token_s.append(times[0] - started if times else 0.0)
            tally.inter_token_s += [b - a for a, b in itertools.pairwise(times)]
        if "".join(parts) != expected:
            tally.wrong.append(f"{body['messages'][0]['content']!r}: {''.join(parts)[:80]!r} != {expected[:80]!r}")
    return "complete"


def leave(settings: LoadSettings, body: dict[str, Any], after_tokens: int) -> str:
    """0: while the request waits, or its prompt is read."""
    stream = Stream(settings, body)
    for _ in islice(stream.texts(), after_tokens):
        pass
    stream.close()
    return "left"


def be_killed(settings: LoadSettings, body: dict[str, Any], after_s: float) -> str:
    """A process of its own sends the request and is killed in the middle."""
    command = [sys.executable, __file__, "--url", settings.url, "--one", json.dumps(body)]
    child = subprocess.Popen(
        [*command, "--key", settings.key or ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        child.wait(after_s)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
    child.wait()
    return "killed"


def one_request(
    settings: LoadSettings, body: dict[str, Any], expected: str, tally: Tally, chance: random.Random
) -> str:
    if chance.random() >= settings.faults:
        return read_well(settings, body, expected, tally)
    match chance.choice(FAULTS):
        case "disconnect":
            return leave(settings, body, 0)
        case "cancel":
            return leave(settings, body, chance.randint(1, settings.max_tokens // 2))
        case "kill":
            return be_killed(settings, body, chance.uniform(0.3, 2.0))
        case _:
            return read_well(settings, body, expected, tally, pause_s=chance.uniform(0.05, 0.2))


def run_clients(settings: LoadSettings, expected: list[tuple[dict[str, Any], str]], tally: Tally) -> float:
    """All requests by so many clients; returns the seconds."""
    work: SimpleQueue[int] = SimpleQueue()
    for number in range(settings.requests):
        work.put(number)

    def client() -> None:
        while True:
            try:
                number = work.get_nowait()
            except Empty:
                return
            body, text = expected[number % len(expected)]
            try:
                outcome = one_request(settings, body, text, tally, random.Random(f"{settings.seed} {number}"))
            except (OSError, RuntimeError, http.client.HTTPException) as error:
                outcome = f"error: {re.sub(r'[0-9]+', 'N', str(error))[:80]}"
            with tally.lock:
                tally.outcomes[outcome] += 1

    started = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(settings.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def metric(settings: LoadSettings, name: str) -> float | None:
    """None if the server does not publish it."""
    request = urllib.request.Request(f"{settings.url}/metrics")
    if settings.key:
        request.add_header("Authorization", f"Bearer {settings.key}")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            found = re.search(rf"^{name} (\S+)$", response.read().decode(), re.MULTILINE)
    except OSError:
        return None
    return float(found[1]) if found else None


def leaked_places(settings: LoadSettings) -> float:
    """Places that are still taken when nobody asks any more."""
    until = time.monotonic() + SETTLE_S
    while True:
        taken = [metric(settings, f"slipstream_streams_{state}") or 0.0 for state in ("active", "queued")]
        if not sum(taken) or time.monotonic() > until:
            return sum(taken)
        time.sleep(0.1)


def percentiles(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 4), "p95": round(cuts[94], 4), "p99": round(cuts[98], 4)}


def run_load(settings: LoadSettings) -> dict[str, Any]:
    expected = [(body, whole_text(settings, body)) for body in bodies(settings)]
    warm_up = Tally()  # fills the prompt cache and the buffers of as many clients, so that memory can be compared
    run_clients(settings, expected, warm_up) if settings.faults else None
    memory, tally = metric(settings, "process_resident_memory_bytes"), Tally()
    seconds = run_clients(settings, expected, tally)
    leaked, after = leaked_places(settings), metric(settings, "process_resident_memory_bytes")
    growth = None if not memory or not after else after / memory - 1
    return {
        "settings": asdict(settings) | {"key": None},
        "seconds": round(seconds, 2),
        "tokens_per_second": round(tally.num_tokens / seconds, 2),
        "first_token_s": percentiles(tally.first_token_s),
        "between_chunks_s": percentiles(tally.inter_token_s),
        "outcomes": dict(tally.outcomes),
        "wrong_texts": tally.wrong,
        "leaked_places": leaked,
        "memory_bytes": after,
        "memory_growth": None if growth is None else round(growth, 4),
    }


def is_good(result: dict[str, Any]) -> bool:
    errors = [outcome for outcome in result["outcomes"] if outcome.startswith("error")]
    return not (
        errors or result["wrong_texts"] or result["leaked_places"] or (result["memory_growth"] or 0) > MAX_GROWTH
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--faults", type=float, default=0.3, help="share of requests that misbehave")
    parser.add_argument("--speculation", choices=["auto", "on", "off", "none"], default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--key", default="")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    settings = LoadSettings(
        given.url, given.clients, given.requests, given.max_tokens, given.faults, given.speculation, given.seed,
        given.key or None,
    )  # fmt: skip
    if given.one:
        whole_text(settings, json.loads(given.one))
        return
    result = run_load(settings)
    print(json.dumps(result, indent=1))
    if given.out:
        given.out.write_text(json.dumps(result))
    sys.exit(0 if is_good(result) else 1)


if __name__ == "__main__":
    main()
