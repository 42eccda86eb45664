"""Bucket: the forward for up to so many rows, captured once as a graph."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from slipstream.backends.torch.cuda.batch import CudaBatch
from slipstream.backends.torch.cuda.choose import Chooser, narrowed
from slipstream.backends.torch.cuda.linear import MAX_SKINNY_ROWS
from slipstream.backends.torch.decoder import Decoder
from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool
from slipstream.core.sampling import Sampling

log = logging.getLogger("slipstream")


class Bucket:
    """The forward for up to `capacity` rows: its buffers, and its graph once it was captured."""

    def __init__(self, decoder: Decoder[CudaBatch], pool: KVPool, capacity: int, device: torch.device) -> None:
        pages_a_stream = min(pool.num_pages, -(-decoder.rope.cosine.shape[0] // PAGE_SIZE) + 1)
        max_pages = pages_a_stream * min(capacity, MAX_SKINNY_ROWS)
        self.batch = CudaBatch(decoder.config, capacity, max_pages, pool.spare_page, device)
        self.chooser = Chooser(capacity, decoder.head.outputs, device)
        self.logits = torch.empty(0)  # [rows, vocab] float32
        self._decoder = decoder
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> None:
        """Starts the forward of what the batch holds; does not wait for it."""
        if self._graph is None:
            self.run_uncaptured()  # Triton's interpreter has no graphs
        else:
            self._graph.replay()

    def run_uncaptured(self) -> None:
        self.logits = self._decoder.forward(self.batch, self._pool)
        self.chooser.choose(self.logits)

    def narrow(self, rows: Sequence[tuple[Sampling, slice]]) -> None:
        """Chooses once more where top-k, top-p or min-p narrow the choice."""
        if any(sampling.narrows for sampling, _ in rows):
            logits = self.logits.clone()
            for sampling, at in rows:
                if sampling.narrows:
                    logits[at] = narrowed(logits[at], sampling)
            self.chooser.choose(logits)

    @property
    def is_captured(self) -> bool:
        return self._graph is not None

    def capture(self) -> None:
        """Runs once, on no rows, for the compiler; then for the graph."""
        self.batch.fill([])
        self.run_uncaptured()
        with self.capturing() as self._graph:
            self.run_uncaptured()
            logits = self.logits
        self.logits = logits
        log.debug("captured the forward of %d rows", self.batch.capacity)

    @contextmanager
    def capturing(self) -> Iterator[torch.cuda.CUDAGraph]:
        """A graph of what is started inside. Runs nothing."""
        logits = self.logits
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            yield graph
        self.logits = logits
