"""Bucket: a forward for rows up to a capacity, captured once as a graph."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.batch import CudaBatch, DeviceRows
from slipstream.backends.torch.cuda.choose import Chooser, narrowed
from slipstream.backends.torch.decoder import Decoder
from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool
from slipstream.backends.torch.ops import Features
from slipstream.core.sampling import Sampling
from slipstream.host import no_collection
from slipstream.models.config import DecoderConfig

log = logging.getLogger("slipstream")


class ForwardPass(ABC):
    """A forward, and the choice of a token after each row that has logits."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self.logits = torch.empty(0)  # [rows, vocab] float32

    @abstractmethod
    def forward(self) -> torch.Tensor:
        """Logits [rows, vocab] float32 of the batch."""
        ...

    def run_uncaptured(self) -> None:
        self.logits = self.forward()
        self.chooser.choose(self.logits)

    def narrow(self, rows: Sequence[tuple[Sampling, slice]]) -> None:
        """Chooses again if top-k, top-p or min-p narrow the choice for any row."""
        if any(sampling.narrows for sampling, _ in rows):
            logits = self.logits.clone()
            for sampling, at in rows:
                if sampling.narrows:
                    logits[at] = narrowed(logits[at], sampling)
            self.chooser.choose(logits)


class Bucket(ForwardPass):
    """A forward for up to `batch.capacity` rows: its buffers, and its graph once it was captured."""

    def __init__(self, batch: CudaBatch, chooser: Chooser) -> None:
        super().__init__(chooser)
        self.batch = batch
        self._graph: torch.cuda.CUDAGraph | None = None

    def take_over(self, before: Bucket, source: torch.Tensor) -> None:
        """Copies the inputs of its rows, besides tokens, from another forward: for each row, those of row `source`."""

    def run(self) -> None:
        """Starts the forward of the batch; does not wait for it. While a larger graph is captured, it becomes a part of
        that graph, and only its choices can be read.
        """
        if self._graph is None:
            self.run_uncaptured()  # Triton's interpreter has no graphs
        elif torch.cuda.is_current_stream_capturing():
            self.chooser.choose(self.forward())
        else:
            self._graph.replay()

    @property
    def is_captured(self) -> bool:
        return self._graph is not None

    def capture(self) -> None:
        """Runs once without rows, to compile the kernels; then captures the graph."""
        self.batch.fill([])
        self.run_uncaptured()
        with captured_graph() as graph:
            self.run_uncaptured()
        self._graph = graph
        log.debug("captured the forward of %d rows", self.batch.capacity)


class TargetBucket(Bucket):
    """The forward of a whole model. `feature_layers`: those whose hidden states a head reads."""

    def __init__(
        self, decoder: Decoder[DeviceRows], pool: KVPool, capacity: int, device: torch.device,
        feature_layers: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        batch = make_batch(decoder.config, pool, capacity, len(decoder.rope.cosine), device)
        super().__init__(batch, Chooser(capacity, decoder.head.outputs, device))
        self._decoder = decoder
        self._pool = pool
        width = len(feature_layers) * decoder.config.hidden_size
        out = torch.zeros(capacity, width, dtype=decoder.ops.activation_dtype, device=device)
        self._features = Features(feature_layers, out) if feature_layers else None

    def forward(self) -> torch.Tensor:
        return self._decoder.forward(self.batch, self._pool, self._features).logits

    def features(self, parts: Sequence[SequenceRows]) -> torch.Tensor | None:
        """A copy of [rows, features] of the forward that was started last; None if no head follows its sequences."""
        if self._features is None or not any(part.sequence.is_followed for part in parts):
            return None
        return self.rows_of_features(sum(part.num_rows for part in parts)).clone()

    def rows_of_features(self, rows: int) -> torch.Tensor:
        """Not a copy: the next forward overwrites them."""
        assert self._features is not None
        return self._features.out[:rows]


@contextmanager
def captured_graph(memory: Any = None) -> Iterator[torch.cuda.CUDAGraph]:
    """Captures what is started inside as a graph, without running it. Nothing may free memory of the GPU meanwhile.

    `memory`: a pool that is shared by graphs of which one runs at a time.
    """
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with no_collection(), torch.cuda.graph(graph, pool=memory):
        yield graph


def make_batch(
    config: DecoderConfig, pool: KVPool, capacity: int, num_positions: int, device: torch.device
) -> CudaBatch:
    pages_a_stream = min(pool.num_pages, -(-num_positions // PAGE_SIZE) + 1)
    return CudaBatch(config, capacity, pages_a_stream * capacity, pool.spare_page, device)
