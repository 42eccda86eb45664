"""LongForward: the forward of a whole model over more rows than a bucket has, for prompts.

A few hundred rows take the device less time than the host needs to start all kernels, so their number is rounded up to
that of a room (its rows and pages), and a room that comes back is captured as a graph. It gives the same bits: the
sizes of products are the same. More rows run uncaptured: the host is then ahead of the device.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.batch import DeviceRows
from slipstream.backends.torch.cuda.bucket import ForwardPass
from slipstream.backends.torch.cuda.choose import Chooser
from slipstream.backends.torch.cuda.long_batch import LaidRows, LongBatch, Room, lay_rows
from slipstream.backends.torch.cuda.ops import TritonOps
from slipstream.backends.torch.decoder import Decoder
from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool, PooledSequence
from slipstream.backends.torch.memory import CAPTURED_ROWS
from slipstream.backends.torch.ops import Features
from slipstream.host import no_collection

_WARM_ROWS = 512  # of the forward that compiles the kernels
_MAX_GRAPHS = 32  # there are 28 sizes up to CAPTURED_ROWS; others run uncaptured
log = logging.getLogger("slipstream")


@dataclass(slots=True)
class _Rows:
    """The batch of one forward, and where it writes features for a head."""

    batch: LongBatch
    features: Features | None
    graph: torch.cuda.CUDAGraph | None = None
    logits: torch.Tensor | None = None  # of the graph


class LongForward(ForwardPass):
    """Logits are only those of the requested rows."""

    def __init__(
        self, decoder: Decoder[DeviceRows], pool: KVPool, max_rows: int, device: torch.device,
        feature_layers: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(Chooser(max_rows, decoder.head.outputs, device))
        self._decoder = decoder
        self._pool = pool
        self._device = device
        self._feature_layers = feature_layers
        assert isinstance(decoder.ops, TritonOps)
        self._rows_a_block = decoder.ops.rows_a_block
        self._rows: _Rows | None = None
        self._num_rows = 0
        self._rooms: dict[Room, _Rows] = {}
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None  # of all graphs, in turns
        self._ended: torch.cuda.Event | None = None  # the last forward that was not waited for

    def start(self, parts: Sequence[SequenceRows]) -> None:
        """Lays out these rows and starts their forward; does not wait for it."""
        laid = lay_rows(self._decoder.config, parts, self._rows_a_block, self._pool.spare_page)
        self._num_rows = len(laid.tokens)
        room = laid.room if self._num_rows <= CAPTURED_ROWS else None
        if room not in self._rooms:
            self._rows = self._rows_for(laid, room, any(part.sequence.is_followed for part in parts))
            self.run_uncaptured()
            if room and len(self._rooms) < _MAX_GRAPHS:
                self._rooms[room] = self._rows
            return
        self._rows = rows = self._rooms[room]
        rows.batch.fill(laid)
        if rows.graph is None and self._memory:
            self._capture(rows)
        if rows.graph is None or rows.logits is None:
            self.run_uncaptured()  # Triton's interpreter has no graphs
        else:
            rows.graph.replay()
            self.logits = rows.logits

    def leave(self) -> bool:
        """Whether the host, which reads nothing of this forward, may start the next while it runs. If so, waits for the
        one before. Not with so few rows that it may be a graph: its buffers are filled again, so it has to end first.
        """
        if self._num_rows <= CAPTURED_ROWS or self._device.type != "cuda":
            return False
        before, self._ended = self._ended, torch.cuda.Event()
        self._ended.record()
        if before:
            before.synchronize()
        return True

    def warm_up(self) -> None:
        """Runs once, in the spare page, for the compiler: rows in blocks and a row in a tile."""
        spare = PooledSequence(self._pool, 0)
        spare.pages = [self._pool.spare_page] * -(-_WARM_ROWS // PAGE_SIZE)
        self.start([SequenceRows(spare, 0, [0] * count) for count in (_WARM_ROWS, 1)])

    def forward(self) -> torch.Tensor:
        assert self._rows is not None
        return self._decoder.forward(self._rows.batch, self._pool, self._rows.features).logits

    @property
    def features(self) -> torch.Tensor | None:
        """[rows, features] if a head may read them."""
        features = self._rows.features if self._rows else None
        return features.out[: self._num_rows].clone() if features else None

    def _rows_for(self, laid: LaidRows, room: Room | None, is_followed: bool) -> _Rows:
        features, num_rows = None, room.rows if room else len(laid.tokens)
        if self._feature_layers and (room or is_followed):
            width = len(self._feature_layers) * self._decoder.config.hidden_size
            out = torch.empty(num_rows, width, dtype=self._decoder.ops.activation_dtype, device=self._device)
            features = Features(self._feature_layers, out)
        return _Rows(LongBatch(self._decoder.config, laid, self._device, room), features)

    def _capture(self, rows: _Rows) -> None:
        """Captures rows that ran before: everything is compiled. Once memory is short, captures no more."""
        try:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # other threads may use the GPU meanwhile
            with no_collection(), torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                self.run_uncaptured()
        except RuntimeError as error:
            self._memory = None
            log.warning("prompts are read without graphs, which takes the host longer: %s", error)
            return
        rows.graph, rows.logits = graph, self.logits
