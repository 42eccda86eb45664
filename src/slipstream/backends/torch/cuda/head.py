"""CudaHead: a draft head in captured graphs. A chain is drafted on the device, as that of a draft model is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.bucket import make_batch
from slipstream.backends.torch.cuda.draft_loop import DraftLoop
from slipstream.backends.torch.cuda.head_bucket import HeadBucket
from slipstream.backends.torch.cuda.head_rounds import HeadRounds
from slipstream.backends.torch.cuda.kernels.fp8 import MIN_TILE, rounded
from slipstream.backends.torch.cuda.kernels.linear import MAX_SKINNY_ROWS
from slipstream.backends.torch.cuda.ops import TritonOps, qkv_kind
from slipstream.backends.torch.cuda.tree_loop import TreeLoop
from slipstream.backends.torch.head import FollowingHead, trail_of
from slipstream.backends.torch.kv_pool import KVPool, PooledSequence, own_sequence
from slipstream.backends.torch.ops import DraftHead
from slipstream.backends.torch.trail import joined_rows
from slipstream.core.protocols import DraftNodes, ExtendRequest, Extension, KVSequence, Logits
from slipstream.core.sampling import Sampling
from slipstream.core.tree import ROOT, DraftTree

log = logging.getLogger("slipstream")

BUCKETS = (1, 2, 4, 8, 16, 32, MAX_SKINNY_ROWS)
_FP8_FROM_BYTES = 200 << 20  # four times an H200's cache; measured with 750 MB (an 8B's): a step takes 0.63x


def in_fp8(head: DraftHead) -> DraftHead:
    """Rounds a head's products to FP8 if they are large: a step takes as long as reading them. Drafts may change."""
    layer = head.layer
    products = (layer.qkv, layer.output, layer.gate_up, layer.down, head.logits)
    fits = all(p.data.dtype != torch.float16 and p.inputs % MIN_TILE == 0 for p in products)
    if not fits or sum(p.num_bytes for p in products) < _FP8_FROM_BYTES:
        return head
    log.info("the products of the draft head are rounded to FP8; --dtype bf16 keeps them as they are")
    qkv, output, gate_up, down, logits = map(rounded, products)
    return replace(head, layer=replace(layer, qkv=qkv, output=output, gate_up=gate_up, down=down), logits=logits)


class CudaHead(FollowingHead):
    ends_early = False

    def __init__(self, path: Path, head: DraftHead, ops: TritonOps, pool: KVPool) -> None:
        super().__init__(path, head)
        device = self._device
        self._ops = ops
        self._pool = pool
        self._ids = head.token_ids.int()
        self._buckets: dict[int, HeadBucket] = {}
        self.draft_loop = DraftLoop(self.bucket, device, self._put_features, MAX_SKINNY_ROWS)
        self.rounds = HeadRounds(self.bucket, self.draft_loop, len(head.rope.cosine), device)
        self._tree_loops: dict[int, TreeLoop] = {}  # by width

    def warm_up(self) -> None:
        self._measure_tilings()
        for rows in BUCKETS:
            self.bucket(rows)
        self.draft_loop.warm_up()

    def _measure_tilings(self) -> None:
        head, layer = self._head, self._head.layer
        products = [
            (qkv_kind(layer.qk_norm, head.cache), [layer.qkv]),
            ("add", [layer.output]),
            ("gate", [layer.gate_up]),
            ("add", [layer.down]),
            ("logits", [head.logits]),
        ]
        batch = make_batch(head.config.layer, self._pool, 1, len(head.rope.cosine), self._device)
        batch.fill([])
        self._ops.measure(products, batch, head.rope, head.cache)

    def bucket(self, rows: int) -> HeadBucket:
        capacity = next(size for size in BUCKETS if rows <= size)
        if capacity not in self._buckets:
            bucket = HeadBucket(self._head, self._ops, self._pool, capacity, self._ids)
            self._buckets[capacity] = bucket
            if self._device.type == "cuda":
                bucket.capture()
        return self._buckets[capacity]

    # -- without the host ----------------------------------------------------------------------------------------------

    def extends(self, sampling: Sampling, width: int) -> bool:
        return not sampling.changes_logits and not (width > 1 and sampling.narrows)

    @torch.inference_mode()
    def extend(self, requests: Sequence[ExtendRequest]) -> list[Extension]:
        """Chains of all streams together, trees one by one."""
        if requests[0].width > 1:
            self.rounds.forget()
            return [self._grown(request) for request in requests]
        sequences = [own_sequence(request.sequence) for request in requests]
        if chains := self.rounds.drafted(requests, sequences):
            for sequence in sequences:  # the device has read it
                trail_of(sequence).take()
                sequence.head_length = sequence.length
            return chains
        self.rounds.forget()
        steps = max(request.steps for request in requests)
        for sequence in sequences:
            sequence.make_room(steps)
        parts = [self._unread(s, r.pending[-1]) for s, r in zip(sequences, requests, strict=True)]
        asked = [replace(request, pending=part.pending) for request, part in zip(requests, parts, strict=True)]
        extensions = self.draft_loop.run(asked, parts)
        for sequence in sequences:
            sequence.head_length = sequence.length
        return extensions

    def _grown(self, request: ExtendRequest) -> Extension:
        sequence = own_sequence(request.sequence)
        sequence.make_room(request.width * request.steps)
        part = self._unread(sequence, request.pending[-1])
        first = self._run(part, trail_of(sequence).take())
        sequence.head_length = sequence.length
        return self._tree_loop(request.width).run(request, part, first)

    def _tree_loop(self, width: int) -> TreeLoop:
        if width not in self._tree_loops:
            level = HeadBucket(self._head, self._ops, self._pool, width, self._ids)
            self._tree_loops[width] = TreeLoop(level, self._ids)
            if self._device.type == "cuda":
                self._tree_loops[width].warm_up(self.bucket(1))
        return self._tree_loops[width]

    def _unread(self, sequence: PooledSequence, last: int) -> SequenceRows:
        """The rows that begin a draft: at least one, at most those of a graph. If more are unread, reads them now."""
        trail = trail_of(sequence)
        if trail.num_unread > MAX_SKINNY_ROWS:
            self._read_features([sequence], [last])
        if not trail.num_unread:
            trail.read_again()
            sequence.head_length -= 1
        start = sequence.head_length
        return SequenceRows(sequence, start, [*sequence.tokens[start + 1 :], last])

    def _put_features(self, bucket: HeadBucket, parts: Sequence[SequenceRows]) -> None:
        bucket.fuse(joined_rows([trail_of(part.sequence).take() for part in parts]))

    # -- step by step, where the host chooses --------------------------------------------------------------------------

    @torch.inference_mode()
    def begin_draft(self, sequences: Sequence[KVSequence], tokens: Sequence[int]) -> list[Logits]:
        self.rounds.forget()
        rows: list[Logits] = []
        for sequence, token in zip(map(own_sequence, sequences), tokens, strict=True):
            part = self._unread(sequence, token)
            bucket = self._run(part, trail_of(sequence).take())
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
            bucket = self.bucket(count)
            bucket.batch.fill([SequenceRows(sequence, sequence.length, (), tree)])
            before = [trail.output if parent == ROOT else trail.drafted[parent] for parent in tree.parents]
            bucket.x[:count] = torch.cat([row for row in before if row is not None])
            bucket.run()
            trail.drafted = list(torch.split(bucket.x[:count].clone(), 1))
            found.append(list(bucket.logits[list(draft.nodes)].cpu().numpy()))
        return found

    def _read_features(self, sequences: Sequence[PooledSequence], tokens: Sequence[int]) -> None:
        self.rounds.forget()
        for sequence, last in zip(sequences, tokens, strict=True):
            start, features = sequence.head_length, trail_of(sequence).take()
            following = [*sequence.tokens[start + 1 :], last]
            for begin in range(0, len(following), MAX_SKINNY_ROWS):
                part = SequenceRows(sequence, start + begin, following[begin : begin + MAX_SKINNY_ROWS])
                self._run(part, features[begin : begin + MAX_SKINNY_ROWS])
            sequence.head_length = sequence.length

    def _run(self, part: SequenceRows, features: torch.Tensor) -> HeadBucket:
        bucket = self.bucket(part.num_rows)
        bucket.batch.fill([part])
        bucket.fuse(features)
        bucket.run()
        return bucket
