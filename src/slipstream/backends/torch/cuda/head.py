"""CudaHead: a draft head in captured graphs. A chain is drafted on the device, as that of a draft model is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl

from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.bucket import Bucket, make_batch
from slipstream.backends.torch.cuda.choose import Chooser
from slipstream.backends.torch.cuda.draft_loop import DraftLoop
from slipstream.backends.torch.cuda.linear import MAX_SKINNY_ROWS, SQUARES_UNIT
from slipstream.backends.torch.cuda.ops import TritonOps
from slipstream.backends.torch.cuda.tree_loop import TreeLoop
from slipstream.backends.torch.head import FollowingHead, HeadWeights, own_sequence, trail_of
from slipstream.backends.torch.ops import Hidden, LayerCache, LayerStep, Norm
from slipstream.core.protocols import DraftNodes, ExtendRequest, Extension, KVSequence, Logits
from slipstream.core.tree import ROOT, DraftTree
from slipstream.models.head_files import HeadCheckpoint

if TYPE_CHECKING:
    from slipstream.backends.torch.kv_pool import KVPool, PooledSequence

BUCKETS = (1, 2, 4, 8, 16, 32, MAX_SKINNY_ROWS)


@triton.jit
def inputs_kernel(
    tokens,  # [rows] int32
    table,  # [vocab, width]
    x,  # [rows, width] features made narrow, or the output of the step before
    token_gain,  # [width] float32
    x_gain,
    both,  # [rows, 2 width] normed tokens, then normed x
    squares,  # [3, rows] int64: such that the first norm changes nothing, and zeros for the two others
    width,
    eps,
    UNIT: tl.constexpr,
    KEEPS_NORMED: tl.constexpr,  # x becomes its norm
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    inside = c < width
    at = row.to(tl.int64) * width + c
    token = tl.load(table + tl.load(tokens + row).to(tl.int64) * width + c, mask=inside, other=0.0).to(tl.float32)
    own = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    token = token * tl.rsqrt(tl.sum(token * token, 0) / width + eps) * tl.load(token_gain + c, mask=inside, other=0.0)
    own = own * tl.rsqrt(tl.sum(own * own, 0) / width + eps) * tl.load(x_gain + c, mask=inside, other=0.0)
    first = both + row.to(tl.int64) * 2 * width + c
    tl.store(first, token.to(both.dtype.element_ty), mask=inside)
    tl.store(first + width, own.to(both.dtype.element_ty), mask=inside)
    if KEEPS_NORMED:
        tl.store(x + at, own.to(x.dtype.element_ty), mask=inside)
    norm = tl.arange(0, 4)
    tl.store(
        squares + norm * tl.num_programs(0) + row,
        tl.where(norm == 0, (2 * width).to(tl.int64) * UNIT, 0),
        mask=norm < 3,
    )


class HeadBucket(Bucket):
    """One step of the head for up to `capacity` rows. `x` holds what stands before the rows, and then their outputs."""

    def __init__(
        self, weights: HeadWeights, ops: TritonOps, cache: LayerCache, pool: KVPool, capacity: int, ids: torch.Tensor
    ) -> None:
        config, device = weights.config, ids.device
        batch = make_batch(config.layer, pool, capacity, len(weights.rope.cosine), device)
        super().__init__(batch, Chooser(capacity, len(ids), device, ids))
        self._weights = weights
        self._ops = ops
        self._cache = cache
        dtype, width = ops.activation_dtype, config.layer.hidden_size
        self.x = torch.zeros(capacity, width, dtype=dtype, device=device)
        self.features = torch.zeros(capacity, config.features_size, dtype=dtype, device=device)
        self._fuse_graph: torch.cuda.CUDAGraph | None = None

    def take_over(self, before: Bucket, source: torch.Tensor) -> None:
        assert isinstance(before, HeadBucket)
        self.x.copy_(before.x.index_select(0, source))

    def capture(self) -> None:
        super().capture()
        self._fuse()
        with self.capturing() as self._fuse_graph:
            self._fuse()

    def fuse(self, features: torch.Tensor) -> None:
        """Puts these features [rows, features] before the rows."""
        self.features[: len(features)].copy_(features)
        if self._fuse_graph is None:
            self._fuse()
        else:
            self._fuse_graph.replay()

    def _fuse(self) -> None:
        w, features = self._weights, self.features
        if w.feature_norms:
            gains = torch.stack([norm.gain for norm in w.feature_norms])
            parts = features.view(len(features), len(gains), -1).float()
            normed = F.rms_norm(parts, parts.shape[-1:], eps=w.feature_norms[0].eps) * gains
            features = normed.view(features.shape).to(features.dtype)
        torch.mm(features, w.fuse.data.T, out=self.x)

    def forward(self) -> torch.Tensor:
        ops, w, config, x = self._ops, self._weights, self._weights.config, self.x
        rows, width = x.shape
        both = torch.empty(rows, 2 * width, dtype=x.dtype, device=x.device)
        squares = torch.empty(3, rows, dtype=torch.int64, device=x.device)
        table, tokens = ops.table_of(w.embedding, self.batch.tokens)
        inputs_kernel[(rows,)](
            tokens, table, x, w.embedding_norm.gain, w.hidden_norm.gain, both, squares, width,
            w.hidden_norm.eps, UNIT=SQUARES_UNIT, KEEPS_NORMED=config.norm_before_residual,
            BLOCK=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        unchanged = Norm(w.hidden_norm.gain, 0.0)
        step = LayerStep(w.rope, self.batch, config.layer, self._cache)
        qkv = ops.qkv(Hidden(x, both, squares), unchanged, w.qkv, w.qk_norm, step)
        hidden = Hidden(x, torch.empty_like(x), squares)
        ops.add(ops.attend(qkv, self.batch, config.layer, self._cache), w.output, hidden, then=w.mlp_norm)
        ops.add(ops.gate(hidden, w.mlp_norm, w.gate_up), w.down, hidden, then=w.final_norm)
        logits = ops.logits(hidden, w.final_norm, w.head)
        if config.norm_output:
            normed = F.rms_norm(x.float(), (width,), w.final_norm.gain, w.final_norm.eps)
            x.copy_(normed)
        return logits


class CudaHead(FollowingHead):
    extends = True

    def __init__(
        self, checkpoint: HeadCheckpoint, weights: HeadWeights, ops: TritonOps, pool: KVPool, device: torch.device
    ) -> None:
        super().__init__(checkpoint, weights, pool, device)
        self._ops = ops
        self._pool = pool
        self._ids = torch.from_numpy(self.token_ids).to(device, torch.int32)
        self._buckets: dict[int, HeadBucket] = {}
        self._draft_loop = DraftLoop(self._bucket, device, self._put_features)
        self._tree_loops: dict[int, TreeLoop] = {}  # by width

    def warm_up(self) -> None:
        self._measure_tilings()
        for rows in BUCKETS:
            self._bucket(rows)
        self._draft_loop.warm_up()

    def _measure_tilings(self) -> None:
        w = self._weights
        products = [
            ("project" if w.qk_norm else "qkv", [w.qkv]),
            ("add", [w.output]),
            ("gate", [w.gate_up]),
            ("add", [w.down]),
            ("logits", [w.head]),
        ]
        batch = make_batch(w.config.layer, self._pool, 1, len(w.rope.cosine), self._device)
        batch.fill([])
        self._ops.measure(products, batch, w.rope, self._cache)

    def _bucket(self, rows: int) -> HeadBucket:
        capacity = next(size for size in BUCKETS if rows <= size)
        if capacity not in self._buckets:
            bucket = HeadBucket(self._weights, self._ops, self._cache, self._pool, capacity, self._ids)
            self._buckets[capacity] = bucket
            if self._device.type == "cuda":
                bucket.capture()
        return self._buckets[capacity]

    # -- without the host ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def extend(self, requests: Sequence[ExtendRequest]) -> list[Extension]:
        """Chains of all streams together, trees one by one."""
        if requests[0].width > 1:
            return [self._grown(request) for request in requests]
        sequences = [own_sequence(request.sequence) for request in requests]
        steps = max(request.steps for request in requests)
        for sequence in sequences:
            sequence.make_room(steps)
        parts = [self._unread(s, r.pending[-1]) for s, r in zip(sequences, requests, strict=True)]
        asked = [replace(request, pending=part.pending) for request, part in zip(requests, parts, strict=True)]
        extensions = self._draft_loop.run(asked, parts)
        for sequence in sequences:
            sequence.head_length = sequence.length
        return extensions

    def _grown(self, request: ExtendRequest) -> Extension:
        sequence = own_sequence(request.sequence)
        sequence.make_room(request.width * request.steps)
        part = self._unread(sequence, request.pending[-1])
        first = self._read_unread(part)
        sequence.head_length = sequence.length
        return self._tree_loop(request.width).run(request, part, first)

    def _tree_loop(self, width: int) -> TreeLoop:
        if width not in self._tree_loops:
            level = HeadBucket(self._weights, self._ops, self._cache, self._pool, width, self._ids)
            self._tree_loops[width] = TreeLoop(level, self._ids)
            if self._device.type == "cuda":
                self._tree_loops[width].warm_up(self._bucket(1))
        return self._tree_loops[width]

    def _unread(self, sequence: PooledSequence, last: int) -> SequenceRows:
        """The rows that begin a draft: no more than a graph has, and at least one. Others are read before."""
        trail = trail_of(sequence)
        if trail.num_unread > MAX_SKINNY_ROWS:
            self._read_features([sequence], [last])
        if not trail.num_unread:
            trail.read_again()
            sequence.head_length -= 1
        start = sequence.head_length
        return SequenceRows(sequence, start, [*sequence.tokens[start + 1 :], last])

    def _put_features(self, bucket: HeadBucket, parts: Sequence[SequenceRows]) -> None:
        taken = [trail_of(part.sequence).take() for part in parts]
        bucket.fuse(taken[0] if len(taken) == 1 else torch.cat(taken))

    def _read_unread(self, part: SequenceRows) -> HeadBucket:
        bucket = self._bucket(part.num_rows)
        bucket.batch.fill([part])
        self._put_features(bucket, [part])
        bucket.run()
        return bucket

    # -- step by step, where the host chooses --------------------------------------------------------------------------

    @torch.inference_mode()
    def begin_draft(self, sequences: Sequence[KVSequence], tokens: Sequence[int]) -> list[Logits]:
        rows: list[Logits] = []
        for sequence, token in zip(map(own_sequence, sequences), tokens, strict=True):
            part = self._unread(sequence, token)
            bucket = self._read_unread(part)
            rows.append(bucket.logits[part.num_rows - 1].cpu().numpy())
            trail_of(sequence).output = bucket.x[part.num_rows - 1 : part.num_rows].clone()
            sequence.head_length = sequence.length
        return rows

    @torch.inference_mode()
    def read(self, drafts: Sequence[DraftNodes]) -> list[list[Logits]]:
        """Each draft is read from its beginning: its rows take no longer together than the last of them alone."""
        found: list[list[Logits]] = []
        for draft in drafts:
            sequence, trail = own_sequence(draft.sequence), trail_of(own_sequence(draft.sequence))
            count = max(draft.nodes) + 1
            sequence.make_room(count)
            if draft.depth == 1:
                trail.drafted = []
            tree = DraftTree(tuple(draft.tokens[:count]), tuple(draft.parents[:count]))
            bucket = self._bucket(count)
            bucket.batch.fill([SequenceRows(sequence, sequence.length, (), tree)])
            before = [trail.output if parent == ROOT else trail.drafted[parent] for parent in tree.parents]
            bucket.x[:count] = torch.cat([row for row in before if row is not None])
            bucket.run()
            trail.drafted = list(torch.split(bucket.x[:count].clone(), 1))
            found.append(list(bucket.logits[list(draft.nodes)].cpu().numpy()))
        return found

    def _read_features(self, sequences: Sequence[PooledSequence], tokens: Sequence[int]) -> None:
        for sequence, last in zip(sequences, tokens, strict=True):
            start, features = sequence.head_length, trail_of(sequence).take()
            following = [*sequence.tokens[start + 1 :], last]
            bounds = list(accumulate([MAX_SKINNY_ROWS] * (len(following) // MAX_SKINNY_ROWS), initial=0))
            for begin, end in zip(bounds, [*bounds[1:], len(following)], strict=True):
                if begin < end:
                    self._run(SequenceRows(sequence, start + begin, following[begin:end]), features[begin:end])
            sequence.head_length = sequence.length

    def _run(self, part: SequenceRows, features: torch.Tensor) -> None:
        bucket = self._bucket(part.num_rows)
        bucket.batch.fill([part])
        bucket.fuse(features)
        bucket.run()
