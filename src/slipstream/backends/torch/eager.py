"""EagerRunner: forwards without graphs. For the CPU, and for plain torch on any device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from slipstream.backends.torch.batch import Batch, SequenceRows, build_batch, note_features
from slipstream.backends.torch.decoder import Decoder
from slipstream.backends.torch.head import TorchHead, load_head
from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool
from slipstream.backends.torch.ops import EagerOps
from slipstream.core.protocols import ExtendRequest, Extension, ScoreRequest, Scores
from slipstream.core.tree import ROOT
from slipstream.errors import UsageError
from slipstream.models.draft_heads.files import HeadCheckpoint, check_head_for


class EagerScores:
    """Logits of one request. The rows of all requests are in one array: for each request ROOT, then its nodes."""

    def __init__(
        self, logits: npt.NDArray[np.float32], likeliest: Sequence[int], first: int, request: ScoreRequest,
        ops: EagerOps,
    ) -> None:  # fmt: skip
        self._logits = logits  # [rows of all requests, vocab]
        self._likeliest = likeliest  # of all rows; empty if the ops don't look for it
        self._first = first  # of this one's rows
        self._request = request
        self._ops = ops

    def row(self, node: int) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self._logits[self._first + node + 1]
        return row

    def argmax(self, node: int) -> int:
        return int(self.row(node).argmax())

    def chosen(self, node: int) -> int | None:
        request, likeliest = self._request, self._likeliest
        if request.sampling is None or request.sampling.changes_logits:
            return None
        if request.sampling.is_greedy and likeliest:
            return likeliest[self._first + node + 1]
        depth = 0 if node == ROOT else request.tree.depths()[node]
        return self._ops.chosen(self.row(node), request.sampling, request.position + depth)


class EagerRunner:
    extends = False
    runs_ahead = False
    decoding_rows: int | None = None
    max_rows: int | None = None

    def __init__(self, decoder: Decoder[Batch], pool: KVPool, device: torch.device) -> None:
        assert isinstance(decoder.ops, EagerOps)
        self._decoder = decoder
        self._ops: EagerOps = decoder.ops
        self._pool = pool
        self._device = device
        self.head: TorchHead | None = None

    def score(self, requests: Sequence[ScoreRequest], parts: Sequence[SequenceRows]) -> list[Scores]:
        batch, head = build_batch(parts, PAGE_SIZE, self._device), self.head
        if head:
            head.catch_up([part.sequence for part in parts], [part.pending[0] for part in parts])
        features = head.features(batch.num_rows) if head and any(part.sequence.is_followed for part in parts) else None
        found = self._decoder.forward(batch, self._pool, features)
        note_features(parts, features.out if features else None)
        logits, likeliest = found.logits.cpu().numpy(), () if found.likeliest is None else found.likeliest.tolist()
        starts = accumulate((len(request.tree) + 1 for request in requests), initial=0)
        each = zip(starts, requests, strict=False)
        return [EagerScores(logits, likeliest, start, request, self._ops) for start, request in each]

    @torch.inference_mode()
    def attach_head(self, checkpoint: HeadCheckpoint) -> TorchHead:
        if self.head is None:
            config = check_head_for(checkpoint, self._decoder.config)
            head = load_head(checkpoint, config, self._decoder, self._pool, self._device)
            self.head = TorchHead(checkpoint.path, head, self._ops)
        if self.head.path != checkpoint.path:
            raise UsageError(f"the model has the head {self.head.path} already, and it can have one at a time")
        return self.head

    def extend(self, requests: Sequence[ExtendRequest], parts: Sequence[SequenceRows]) -> list[Extension]:
        raise NotImplementedError("the host chooses each token here: score step by step")
