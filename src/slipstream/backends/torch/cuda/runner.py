"""CudaRunner: forwards as captured graphs, one for each bucket of rows. Prompts have a forward of their own.

A round is one copy to the device, one graph, one small copy back: the target's own token after each row is chosen at
the end of the graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from slipstream.backends.torch.batch import SequenceRows, note_features
from slipstream.backends.torch.cuda.batch import DeviceRows
from slipstream.backends.torch.cuda.bucket import ForwardPass, TargetBucket
from slipstream.backends.torch.cuda.choose import RowChoice, can_choose
from slipstream.backends.torch.cuda.device_time import least_seconds
from slipstream.backends.torch.cuda.draft_loop import DraftLoop
from slipstream.backends.torch.cuda.head import CudaHead, in_fp8
from slipstream.backends.torch.cuda.kernels.linear import MAX_ROWS
from slipstream.backends.torch.cuda.kernels.tilings import NARROW_ROWS
from slipstream.backends.torch.cuda.long_forward import LongForward
from slipstream.backends.torch.cuda.ops import TritonOps
from slipstream.backends.torch.cuda.run_ahead import RunAhead
from slipstream.backends.torch.decoder import Decoder
from slipstream.backends.torch.head import load_head
from slipstream.backends.torch.kv_pool import KVPool, PooledSequence
from slipstream.backends.torch.ops import DraftHead
from slipstream.core.protocols import ExtendRequest, Extension, ScoreRequest, Scores
from slipstream.errors import UsageError
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.draft_heads.files import HeadCheckpoint, check_head_for

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 192, MAX_ROWS)
_ALIKE = 1.02  # a graph may take this many times as long as one for more rows: repeats differ by up to 0.6 %
_REPEATS = 5  # runs of a graph whose time is measured
_LOOK_BACK = 20  # tokens that the rows see whose bits are compared; fewer than a page has
log = logging.getLogger("slipstream")


@dataclass(frozen=True, slots=True)
class CudaScores:
    """Logits of one request, on the device until they are requested. Rows: ROOT first, then the nodes."""

    logits: torch.Tensor | None  # [rows, vocab] float32; None where the next forward is under way already
    rows: slice  # of them that are this request's
    tokens: Sequence[int] | None  # the target's own token after each, where the device could choose it
    is_greedy: bool

    def row(self, node: int) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self._logits(node).cpu().numpy()
        return row

    def chosen(self, node: int) -> int | None:
        return None if self.tokens is None else self.tokens[node + 1]

    def argmax(self, node: int) -> int:
        if self.tokens is not None and self.is_greedy:
            return self.tokens[node + 1]
        return int(self._logits(node).argmax())

    def _logits(self, node: int) -> torch.Tensor:
        if self.logits is None:
            raise RuntimeError(
                "where the next request is known (`next_draft`) no logits are kept: the token is `chosen`"
            )
        return self.logits[self.rows.start + node + 1]


class CudaRunner:
    extends = True  # a draft may take several steps on the device
    runs_ahead = True
    decoding_rows: int | None = MAX_ROWS

    def __init__(
        self, decoder: Decoder[DeviceRows], pool: KVPool, max_rows: int, device: torch.device,
        rounds_large_heads: bool = False,
    ) -> None:  # fmt: skip
        """`rounds_large_heads`: to FP8."""
        self._decoder = decoder
        self._rounds_large_heads = rounds_large_heads
        self._pool = pool
        self._planned_rows = max_rows
        self.max_rows: int | None = max_rows
        self._device = device
        self._head: CudaHead | None = None
        self._buckets: dict[int, TargetBucket] = {}
        self._sizes: Sequence[int] = BUCKETS
        self._long: LongForward | None = None
        self._feature_layers: tuple[int, ...] = ()
        self._draft_loop = DraftLoop(self.bucket, device)
        self._run_ahead = RunAhead(len(decoder.rope.cosine), MAX_ROWS, device)

    def bucket(self, rows: int) -> TargetBucket:
        """The smallest bucket that fits; its graph is captured on first use."""
        capacity = next(size for size in self._sizes if rows <= size)
        if capacity not in self._buckets:
            layers = self._feature_layers
            bucket = self._buckets[capacity] = TargetBucket(self._decoder, self._pool, capacity, self._device, layers)
            if self._device.type == "cuda":
                bucket.capture()
        return self._buckets[capacity]

    def _long_forward(self) -> LongForward:
        if self._long is None:
            layers = self._feature_layers
            self._long = LongForward(self._decoder, self._pool, self._planned_rows, self._device, layers)
        return self._long

    def warm_up(self, report: Callable[[float], None]) -> None:
        """Captures all graphs now, rather than when they are first needed."""
        self._sizes = BUCKETS
        for i, rows in enumerate(BUCKETS):
            report(i / len(BUCKETS))
            self._run_ahead.warm_up(self.bucket(rows))
        self._leave_out_slow()
        self._draft_loop.warm_up()
        if self._planned_rows > MAX_ROWS:
            self._long_forward().warm_up()
        if self._decoder.ops.batch_invariant:
            self._keep_to_exact_rows()

    def _leave_out_slow(self) -> None:
        """Drops graphs that take longer than one for more rows. That happens: 32 rows of an 8B took 8 % longer than 64,
        whose tiles suit the GPU better. Those of few rows all have the same tiles, and stay.
        """
        if self._device.type != "cuda":
            return
        fastest, sizes = float("inf"), [size for size in BUCKETS if size <= NARROW_ROWS]
        for size in reversed(BUCKETS[len(sizes) :]):
            seconds = least_seconds(self._buckets[size].run, _REPEATS)
            if seconds <= fastest * _ALIKE:
                sizes.append(size)
            else:
                del self._buckets[size]
            fastest = min(fastest, seconds)
        self._sizes = sorted(sizes)
        log.debug("graphs of %s rows are used", self._sizes)

    def _keep_to_exact_rows(self) -> None:
        """Checks batch invariance on this GPU, and limits the rows: GPUs and compilers differ."""
        self.max_rows = self.decoding_rows = self.exact_rows()
        if self.max_rows < self._sizes[-1]:
            log.warning("on this GPU rows keep their bits up to %d at once: prompts are read slowly", self.max_rows)

    @torch.inference_mode()
    def exact_rows(self) -> int:
        """The most rows whose logits have the bits that a row alone has, measured with the graphs. The rows are equal:
        only their number can matter. A graph is filled with them: unused rows would write to the page that these read.
        """
        spare = PooledSequence(self._pool, 0)
        spare.pages = [self._pool.spare_page]
        alone, most = torch.empty(0), 0
        for size in self._sizes:
            bucket = self.bucket(size)
            bucket.batch.fill([SequenceRows(spare, _LOOK_BACK, [0])] * size)
            bucket.run()
            bits = bucket.logits[:size].view(torch.int32)
            alone = alone if most else bits[0].clone()
            if not bool((bits == alone).all()):
                break
            most = size
        return most

    def extend(self, requests: Sequence[ExtendRequest], parts: Sequence[SequenceRows]) -> list[Extension]:
        self._use_device()
        self._run_ahead.forget()
        self._forget_rounds()
        return self._draft_loop.run(requests, parts)

    @torch.inference_mode()
    def attach_head(self, checkpoint: HeadCheckpoint) -> CudaHead:
        """Captures all graphs again, since they now have to write features."""
        if self._head is None:
            self._use_device()
            config, own = check_head_for(checkpoint, self._decoder.config), self._decoder.ops
            assert isinstance(own, TritonOps)
            ops = own.for_head(config.layer)
            head = CudaHead(checkpoint.path, self._load_head(checkpoint, config, ops), ops, self._pool)
            self._feature_layers = config.feature_layers
            self._run_ahead.forget()
            self._buckets, self._long, self._draft_loop = {}, None, DraftLoop(self.bucket, self._device)
            if self._device.type == "cuda":
                self.warm_up(lambda share: None)
                head.warm_up()
                head.rounds.warm_up(self.bucket)
            self._head = head
        if self._head.path != checkpoint.path:
            raise UsageError(f"the model has the head {self._head.path} already, and it can have one at a time")
        return self._head

    def _load_head(self, checkpoint: HeadCheckpoint, config: HeadConfig, ops: TritonOps) -> DraftHead:
        head = load_head(checkpoint, config, replace(self._decoder, ops=ops), self._pool, self._device)
        return in_fp8(head) if self._rounds_large_heads else head

    def _use_device(self) -> None:
        """The current CUDA device is set per thread, and any thread may run a round."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def score(self, requests: Sequence[ScoreRequest], parts: Sequence[SequenceRows]) -> list[Scores]:
        self._use_device()
        if self._head:
            self._head.catch_up([part.sequence for part in parts], [part.pending[0] for part in parts])
        num_rows = sum(part.num_rows for part in parts)
        if num_rows > MAX_ROWS:
            self._run_ahead.forget()
            return self._score_long(requests, parts)
        bucket = self.bucket(num_rows)
        outputs = _outputs(parts, [part.num_rows for part in parts])
        if bucket.is_captured and num_rows == len(parts):
            self._forget_rounds()
            tokens = self._run_ahead.score(bucket, requests, parts)
            if tokens:
                logits = None if self._run_ahead.is_under_way else bucket.logits
                return _scores_of_each(logits, requests, outputs, tokens)
        self._run_ahead.forget()
        asked = _asked(requests, outputs, num_rows)
        if self._head and num_rows > len(parts):
            tokens = self._head.rounds.score(self.bucket, requests, parts, asked)
            if tokens:
                logits = None if self._head.rounds.is_under_way else bucket.logits
                return _scores_of_each(logits, requests, outputs, tokens)
        bucket.batch.fill(parts)
        bucket.chooser.ask(asked)
        bucket.run()
        note_features(parts, bucket.features(parts))
        return _chosen(bucket, requests, outputs, num_rows)

    def _forget_rounds(self) -> None:
        """Another forward uses their buffers."""
        if self._head:
            self._head.rounds.forget()

    def _score_long(self, requests: Sequence[ScoreRequest], parts: Sequence[SequenceRows]) -> list[Scores]:
        forward = self._long_forward()
        outputs = _outputs(parts, [len(part.tree) + 1 for part in parts])
        forward.chooser.ask(_asked(requests, outputs, outputs[-1].stop))
        forward.start(parts)
        note_features(parts, forward.features)
        if all(request.sampling is None for request in requests) and forward.leave():
            return _scores_of_each(forward.logits, requests, outputs, [])
        return _chosen(forward, requests, outputs, outputs[-1].stop)


def _chosen(
    forward: ForwardPass, requests: Sequence[ScoreRequest], outputs: Sequence[slice], num_rows: int
) -> list[Scores]:
    """The scores of a forward, with the tokens that it chose. Waits for it."""
    forward.narrow([(r.sampling, at) for r, at in zip(requests, outputs, strict=True) if r.sampling])
    return _scores_of_each(forward.logits, requests, outputs, forward.chooser.read(num_rows))


def _scores_of_each(
    logits: torch.Tensor | None, requests: Sequence[ScoreRequest], outputs: Sequence[slice], tokens: list[int]
) -> list[Scores]:
    return [_scores(logits, request, at, tokens) for request, at in zip(requests, outputs, strict=True)]


def _scores(logits: torch.Tensor | None, request: ScoreRequest, at: slice, tokens: list[int]) -> CudaScores:
    sampling = request.sampling
    if sampling is None or not can_choose(sampling):
        return CudaScores(logits, at, None, False)
    return CudaScores(logits, at, tokens[at], sampling.is_greedy)


def _outputs(parts: Sequence[SequenceRows], sizes: Sequence[int]) -> list[slice]:
    """Each part's last rows: those of its last pending token and its nodes, given how many rows each has."""
    return [slice(end - len(p.tree) - 1, end) for p, end in zip(parts, accumulate(sizes), strict=True)]


def _asked(requests: Sequence[ScoreRequest], outputs: Sequence[slice], num_rows: int) -> list[RowChoice | None]:
    """How each row chooses. The token after a node is `depth` positions after the one after ROOT."""
    asked: list[RowChoice | None] = [None] * num_rows
    for request, at in zip(requests, outputs, strict=True):
        if request.sampling and not request.sampling.is_greedy and can_choose(request.sampling):
            depths = (0, *request.tree.depths())
            asked[at] = [RowChoice(request.sampling, request.position + depth) for depth in depths]
    return asked
