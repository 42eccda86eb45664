"""Tilings: how each product is split into tiles, measured once per machine and shape, and cached."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import triton

from slipstream.backends.torch.cuda.bucket import captured_graph
from slipstream.backends.torch.cuda.device_time import least_seconds
from slipstream.backends.torch.cuda.kernels.linear import MAX_ROWS, Maker, Tiling
from slipstream.backends.torch.cuda.kernels.nvrtc import NvrtcError
from slipstream.backends.torch.cuda.kernels.products import Products
from slipstream.backends.torch.ops import Linear
from slipstream.cache import private_folder, read_private
from slipstream.errors import SlipstreamError
from slipstream.writing import OWNER_WRITES, write_whole

Trial = Callable[[Linear, Tiling], None]
log = logging.getLogger("slipstream")

CANDIDATES: dict[str, tuple[Tiling, ...]] = {
    "qkv": (
        Tiling(32, 128, 4),
        Tiling(32, 64, 8),
        Tiling(32, 64, 6, split=2),
        Tiling(32, 64, 8, split=2),
        Tiling(32, 128, 4, split=2),
        Tiling(64, 128, 3, split=4),
    ),
    "project": (Tiling(32, 128, 6), Tiling(64, 128, 6), Tiling(64, 256, 3, tma=True), Tiling(32, 512, 3, tma=True)),
    "gate": (Tiling(64, 64, 4), Tiling(32, 64, 5), Tiling(32, 128, 5), Tiling(64, 128, 3, tma=True)),
    "add": (
        Tiling(32, 128, 6, split=2),
        Tiling(32, 128, 6, split=4),
        Tiling(32, 64, 8, split=4),
        Tiling(32, 256, 4, split=2, tma=True),
        Tiling(32, 512, 4, tma=True),
    ),
    "logits": (Tiling(64, 128, 5), Tiling(128, 128, 4), Tiling(64, 256, 3, tma=True)),
}
# Where streamed.cu has kernels, by how many warps share the inputs. The layers of a model use them for all products or
# for none: between Triton's kernels, their blocks are spread unevenly over the GPU (a step of an 8B took 4.46 ms with
# gate-up by Triton, 4.00 without).
STREAMED: dict[str, tuple[Tiling, ...]] = {
    kind: tuple(Tiling(16, 64, 1, split=split, by="streamed") for split in splits)
    for kind, splits in {"qkv": (1,), "project": (1,), "gate": (1,), "add": (1, 2, 4)}.items()
}
# For more rows, by how many there are at most: their tiles have more arithmetic to a byte of weights. How a sum is
# shared is not theirs to choose: as that of few rows is, so that a row has the same bits in any company. But one
# program adds up all shares: through memory, those of 256 rows took 7 to 15 us.
WIDE: dict[int, tuple[Tiling, ...]] = {
    32: (
        Tiling(64, 128, 3),
        Tiling(64, 128, 8, tma=True, turned=True),
        Tiling(64, 256, 4, tma=True, turned=True),
        Tiling(128, 64, 8, tma=True, turned=True),
    ),
    64: (
        Tiling(32, 128, 4),
        Tiling(64, 128, 5, tma=True),
        Tiling(32, 128, 8, tma=True),
        Tiling(128, 64, 8, tma=True, turned=True),
    ),
    128: (
        Tiling(64, 128, 3),
        Tiling(64, 128, 5, tma=True),
        Tiling(64, 64, 8, tma=True, block_r=128),
        Tiling(128, 64, 6, tma=True, warps=8, block_r=128),
        Tiling(128, 64, 1, by="hopper"),
    ),
    MAX_ROWS: (
        Tiling(64, 64, 4),
        Tiling(64, 64, 8, tma=True, block_r=128),
        Tiling(128, 64, 6, tma=True, warps=8, block_r=128),
        Tiling(128, 64, 1, by="hopper"),
    ),
}
# Weights in FP8 are packed in tiles of 128 inputs. The time of their products goes to converting weights too, so more
# outputs of a tile share the rows. What has one tiling needs no measurement.
FP8_CANDIDATES: dict[str, tuple[Tiling, ...]] = {
    "qkv": (Tiling(32, 128, 6, split=2), Tiling(32, 128, 4, split=4), Tiling(64, 128, 4, split=4)),
    "project": (Tiling(64, 128, 6), Tiling(32, 128, 8), Tiling(64, 128, 6, split=2)),
    "gate": (Tiling(32, 128, 6), Tiling(64, 128, 4), Tiling(32, 128, 4)),
    "add": (
        Tiling(64, 128, 6, split=4),
        Tiling(32, 128, 8, split=2),
        Tiling(32, 128, 6, split=4),
    ),
    "logits": (Tiling(64, 128, 6), Tiling(128, 128, 4)),
}
FP8_WIDE: dict[int, tuple[Tiling, ...]] = {
    32: (Tiling(64, 128, 4),),
    64: (Tiling(64, 128, 4),),
    128: (Tiling(64, 128, 4), Tiling(128, 128, 3, warps=8, block_r=128)),
    MAX_ROWS: (Tiling(64, 128, 4), Tiling(128, 128, 3, warps=8, block_r=128)),
}
NARROW_ROWS = 16
# A sum in fewer shares is taken if it is at most so many times as slow as the fastest: for many rows, fewer shares are
# faster. For 128 rows of an 8B two shares instead of one took 2 to 4 us more for each product (of 14 to 40); for one
# row a step took 3 % less with them.
_ALIKE = 1.05
_FEW_OUTPUTS = 2112  # 16 for each multiprocessor of an H200; with more, 4 shares gained 0.3 % of a step over 2
_REPEATS = 15
_SPREAD_BYTES = 600_000_000  # weights that one measurement goes through: more than the L2 cache holds


class Tilings:
    """The best known tiling of each product; the first candidate until it was measured."""

    def __init__(self, device: torch.device, others: Mapping[Maker, Products] | None = None) -> None:
        """`others`: those that have kernels beside Triton's."""
        self._others = others or {}
        self.streams = "streamed" in self._others  # and is used
        self._known: dict[str, Tiling] = {}
        self._device = device
        self._keeps = True  # until the cache can't be written

    def of(self, kind: str, weight: Linear, rows: int) -> Tiling:
        narrow = self._known.get(self._narrow_key(kind, weight), self._candidates(kind, weight, 1)[0])
        if rows <= NARROW_ROWS:
            return narrow
        wide = self._known.get(self._wide_key(kind, weight, rows, narrow), self._candidates(kind, weight, rows)[0])
        return wide.like(narrow, weight.inputs, weight.data.element_size())

    def measure(self, kind: str, weights: Sequence[Linear], rows: int, trial: Callable[[], Trial]) -> None:
        """Chooses for one product of so many rows, given its weights of all layers. Takes seconds, the first time.

        Few rows have to be measured before many: these sum as those do.
        """
        weight, is_narrow = weights[0], rows <= NARROW_ROWS
        narrow = self.of(kind, weight, 1)
        key = self._narrow_key(kind, weight) if is_narrow else self._wide_key(kind, weight, rows, narrow)
        candidates = self._candidates(kind, weight, rows)
        if len(candidates) == 1:
            return
        found = self._remembered().get(key)
        tiling = next((known for known in candidates if asdict(known) == found), None)
        if tiling is None:
            run, item = trial(), weight.data.element_size()
            summed = [c if is_narrow else c.like(narrow, weight.inputs, item) for c in candidates]
            seconds = {c: _seconds(run, weights, t) for c, t in zip(candidates, summed, strict=True)}
            fastest = min(seconds.values())
            alike = [c for c in candidates if seconds[c] <= fastest * _ALIKE]
            tiling = min(alike, key=lambda c: (c.split if is_narrow else 1, seconds[c]))
            log.debug("%s: %s", key, tiling)
            self._remember(key, asdict(tiling))
        self._known[key] = tiling

    def choose_streamed(self, model: str, measure: Callable[[], None], seconds_of_step: Callable[[], float]) -> None:
        """Whether few rows' products are streamed: if a step of one row is not slower for it. `measure` finds the best
        tilings. Triton's have the first ones here: to find the best would take as long as all else at the first start.
        """
        if self.streams:
            key = f"{model} is faster streamed"
            found = self._remembered().get(key)
            if not isinstance(found, bool):
                measure()
                streamed = seconds_of_step()
                self.streams = False
                found = streamed <= seconds_of_step()
                log.debug("%s: %s", key, found)
                if streamed < float("inf"):
                    self._remember(key, found)
            self.streams = found
        measure()

    def _is_streamed(self, kind: str, weight: Linear) -> bool:
        return self.streams and kind in STREAMED and self._has("streamed", weight)

    def _narrow_key(self, kind: str, weight: Linear) -> str:
        return _key(kind, weight) + (", streamed" if self._is_streamed(kind, weight) else "")

    def _wide_key(self, kind: str, weight: Linear, rows: int, narrow: Tiling) -> str:
        """Several numbers of rows are measured together. What was found among fewer candidates is kept apart."""
        makers = dict.fromkeys(tiling.by for tiling in self._candidates(kind, weight, rows) if tiling.by != "triton")
        return ", ".join((_key(kind, weight), f"{_size(rows)} rows", f"split {narrow.split}", *makers))

    def _candidates(self, kind: str, weight: Linear, rows: int) -> tuple[Tiling, ...]:
        if rows <= NARROW_ROWS and self._is_streamed(kind, weight):
            most = 4 if weight.outputs <= _FEW_OUTPUTS else 2
            return tuple(tiling for tiling in STREAMED[kind] if tiling.split <= most)
        narrow, wide = (CANDIDATES, WIDE) if weight.scale is None else (FP8_CANDIDATES, FP8_WIDE)
        if rows <= NARROW_ROWS:
            return narrow[kind]
        return tuple(t for t in wide[_size(rows)] if t.by == "triton" or self._has(t.by, weight))

    def _has(self, maker: Maker, weight: Linear) -> bool:
        return maker in self._others and self._others[maker].takes(weight)

    def _remembered(self) -> dict[str, Any]:
        """Results of earlier runs; nothing if the file is missing, damaged or may be another user's."""
        try:
            found = json.loads(read_private(self._store()) or b"{}")
        except (SlipstreamError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _remember(self, key: str, value: object) -> None:
        """If the cache can't be written, the next start measures again."""
        if not self._keeps:
            return
        try:
            everything = self._remembered() | {key: value}
            write_whole(self._store(), json.dumps(everything, indent=1), OWNER_WRITES)
        except (SlipstreamError, OSError) as error:
            self._keeps = False
            log.warning("GPU kernels are measured at every start, because the result can't be cached: %s", error)

    def _store(self) -> Path:
        gpu = torch.cuda.get_device_name(self._device).replace(" ", "-").replace("/", "-")
        return private_folder("tilings") / f"{gpu}-triton-{triton.__version__}.json"


def _key(kind: str, weight: Linear) -> str:
    return f"{kind} {weight.outputs}x{weight.inputs} {weight.data.dtype}".replace("torch.", "")


def _size(rows: int) -> int:
    return next(size for size in WIDE if rows <= size)


def _seconds(run: Trial, weights: Sequence[Linear], tiling: Tiling) -> float:
    """Seconds of one product, in a graph over more layers than fit in the cache. Infinite if the GPU can't run it."""
    count = max(2, min(len(weights), _SPREAD_BYTES // weights[0].data.nbytes + 1))
    turns = [weights[i % len(weights)] for i in range(count)]
    try:
        run(weights[0], tiling)
        with captured_graph() as graph:
            for weight in turns:
                run(weight, tiling)
    except (RuntimeError, NvrtcError, triton.OutOfResources) as error:
        log.debug("%s does not run here: %s", tiling, error)
        return float("inf")
    return least_seconds(graph.replay, _REPEATS)
