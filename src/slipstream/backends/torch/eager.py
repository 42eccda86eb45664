"""EagerRunner: a forward is a call of each step in turn. For the CPU, and for plain torch on any device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from slipstream.backends.torch.batch import Batch, SequenceRows, build_batch
from slipstream.backends.torch.decoder import Decoder
from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool
from slipstream.core.protocols import ExtendRequest, Extension, ScoreRequest, Scores


class EagerScores:
    """Logits of one request. Rows: ROOT first, then the nodes. The host chooses."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits  # [nodes + 1, vocab] float32

    def row(self, node: int) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self._logits[node + 1].cpu().numpy()
        return row

    def argmax(self, node: int) -> int:
        return int(self.row(node).argmax())

    def chosen(self, node: int) -> int | None:
        return None


class EagerRunner:
    extends = False
    runs_ahead = False
    decoding_rows: int | None = None

    def __init__(self, decoder: Decoder[Batch], pool: KVPool, device: torch.device) -> None:
        self._decoder = decoder
        self._pool = pool
        self._device = device

    def score(self, requests: Sequence[ScoreRequest], parts: Sequence[SequenceRows]) -> list[Scores]:
        logits = self._decoder.forward(build_batch(parts, PAGE_SIZE, self._device), self._pool)
        return [EagerScores(part) for part in torch.split(logits, [len(r.tree) + 1 for r in requests])]

    def extend(self, requests: Sequence[ExtendRequest], parts: Sequence[SequenceRows]) -> list[Extension]:
        raise NotImplementedError("the host chooses each token here: score step by step")
