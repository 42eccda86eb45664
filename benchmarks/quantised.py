"""Slipstream's torch backend beside llama.cpp on the CPU: the same GGUF file, the same threads, one interleaved run.

    python benchmarks/quantised.py MODEL.gguf [--threads 2] [--rounds 9] [--clock wall|cpu] [--json]

Prints the time of a forward of 1, 2, 4 and 8 rows after 64 tokens, of a prompt of 128 tokens, and the memory of the
weights. `--clock cpu` counts processor time, with one thread: for a machine that others use too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from llama_cpp import llama_cpp as lib

import slipstream
from slipstream.backends.llamacpp.library import library
from slipstream.backends.torch.options import TorchOptions
from slipstream.core.protocols import ScoreRequest
from slipstream.core.tree import DraftTree

ROWS = (1, 2, 4, 8, 128)
START = 64  # tokens before the rows
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Ours:
    name = "slipstream"

    def __init__(self, path: Path, threads: int, tokens: list[int]) -> None:
        options = TorchOptions(device="cpu", threads=threads, context_length=1024, kv_tokens=2048)
        self.model = slipstream.load_model(path, options).model
        self.sequence = self.model.open(tokens[:START], 1024)
        self.model.score([ScoreRequest(self.sequence, tokens[:START])])
        self.sequence.commit()

    def forward(self, tokens: list[int]) -> None:
        """All rows have logits, as a draft that is checked; a prompt has those of its last row."""
        draft = DraftTree.chain(tokens[1:]) if len(tokens) <= 8 else DraftTree.chain([])
        self.model.score([ScoreRequest(self.sequence, tokens[:1] if len(tokens) <= 8 else tokens, draft)])
        self.sequence.rewind(START)


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, path: Path, threads: int, tokens: list[int]) -> None:
        library()  # silences its log
        self.model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        options = lib.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = 1024
        options.n_threads = options.n_threads_batch = threads
        self.context = lib.llama_init_from_model(self.model, options)
        self.batch = lib.llama_batch_init(1024, 0, 1)
        self._decode(tokens[:START], 0)

    def _decode(self, tokens: list[int], start: int) -> None:
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = len(tokens) <= 8 or i == len(tokens) - 1
        assert lib.llama_decode(self.context, batch) == 0

    def forward(self, tokens: list[int]) -> None:
        self._decode(tokens, START)
        lib.llama_memory_seq_rm(lib.llama_get_memory(self.context), 0, START, -1)


def measure(path: Path, threads: int, rounds: int, clock: Callable[[], float]) -> dict[str, object]:
    tokens = [int(token) for token in np.random.default_rng(0).integers(1000, 20000, 256)]
    sides = [side(path, threads, tokens) for side in (Ours, LlamaCpp)]
    times: dict[str, dict[int, list[float]]] = {side.name: {rows: [] for rows in ROWS} for side in sides}
    for _ in range(rounds):
        for rows in ROWS:
            for side in sides:
                start = clock()
                side.forward(tokens[:rows])
                times[side.name][rows].append((clock() - start) * 1e3)
    ours = sides[0]
    assert isinstance(ours, Ours)
    found = {
        name: {rows: {"median_ms": statistics.median(ms), "least_ms": min(ms)} for rows, ms in of.items()}
        for name, of in times.items()
    }
    return {
        "model": path.name, "file_mb": path.stat().st_size / 1e6, "threads": threads, "load": os.getloadavg(),
        "forward_reads_mb": ours.model.info.weight_bytes / 1e6, "machine": platform.machine(), "times": found,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.clock == "cpu" and given.threads != 1:
        parser.error("--clock cpu needs --threads 1: processor time of waiting threads is no work")
    result = measure(given.model, given.threads, given.rounds, CLOCKS[given.clock])
    if given.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{result['model']}, {given.threads} threads, {given.clock} clock, load average {result['load']}")
    for name, of in result["times"].items():  # type: ignore[attr-defined]
        for rows, ms in of.items():
            median, least = (f"{ms[key]:8.2f} ms ({ms[key] / of[1][key]:.2f}x)" for key in ("median_ms", "least_ms"))
            print(f"{name:10s} {rows:4d} rows: median {median}, least {least}")


if __name__ == "__main__":
    main()
