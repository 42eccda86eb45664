"""HeadBucket: a step of a draft head for rows up to a capacity, captured once as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl

from slipstream.backends.torch.cuda.bucket import Bucket, captured_graph, make_batch
from slipstream.backends.torch.cuda.choose import Chooser
from slipstream.backends.torch.cuda.kernels.linear import SQUARES_UNIT
from slipstream.backends.torch.cuda.ops import TritonOps
from slipstream.backends.torch.ops import DraftHead, Hidden, LayerStep, Norm

if TYPE_CHECKING:
    from slipstream.backends.torch.kv_pool import KVPool


@triton.jit
def inputs_kernel(
    tokens,  # [rows] int32
    table,  # [vocab, width]
    x,  # [rows, width] fused features, or the output of the previous step
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
    """One step of the head for up to `capacity` rows. `x` holds what a row reads besides its token, then its output."""

    def __init__(self, head: DraftHead, ops: TritonOps, pool: KVPool, capacity: int, ids: torch.Tensor) -> None:
        config, device = head.config, ids.device
        batch = make_batch(config.layer, pool, capacity, len(head.rope.cosine), device)
        super().__init__(batch, Chooser(capacity, len(ids), device, ids))
        self._head = head
        self._ops = ops
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
        with captured_graph() as graph:
            self._fuse()
        self._fuse_graph = graph

    def fuse(self, features: torch.Tensor) -> None:
        """Fuses features [rows, features] into `x`."""
        self.features[: len(features)].copy_(features)
        if self._fuse_graph is None or torch.cuda.is_current_stream_capturing():
            self._fuse()
        else:
            self._fuse_graph.replay()

    def _fuse(self) -> None:
        head, features = self._head, self.features
        if head.feature_norms:
            gains = torch.stack([norm.gain for norm in head.feature_norms])
            parts = features.view(len(features), len(gains), -1).float()
            normed = F.rms_norm(parts, parts.shape[-1:], eps=head.feature_norms[0].eps) * gains
            features = normed.view(features.shape).to(features.dtype)
        torch.mm(features, head.fuse.data.T, out=self.x)

    def forward(self) -> torch.Tensor:
        ops, head, layer, config, x = self._ops, self._head, self._head.layer, self._head.config, self.x
        rows, width = x.shape
        both = torch.empty(rows, 2 * width, dtype=x.dtype, device=x.device)
        squares = torch.empty(3, rows, dtype=torch.int64, device=x.device)
        table, tokens = ops.table_of(head.embedding, self.batch.tokens)
        inputs_kernel[(rows,)](
            tokens, table, x, head.token_norm.gain, layer.attention_norm.gain, both, squares, width,
            layer.attention_norm.eps, UNIT=SQUARES_UNIT, KEEPS_NORMED=config.norm_before_residual,
            BLOCK=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        unchanged = Norm(layer.attention_norm.gain, 0.0)
        step = LayerStep(head.rope, self.batch, config.layer, head.cache)
        qkv = ops.qkv(Hidden(x, both, squares), unchanged, layer.qkv, layer.qk_norm, step)
        hidden = Hidden(x, torch.empty_like(x), squares)
        ops.add(ops.attend(qkv, self.batch, config.layer, head.cache), layer.output, hidden, then=layer.mlp_norm)
        ops.add(ops.gate(hidden, layer.mlp_norm, layer.gate_up), layer.down, hidden, then=head.final_norm)
        logits = ops.logits(hidden, head.final_norm, head.logits)
        if config.norm_output:
            normed = F.rms_norm(x.float(), (width,), head.final_norm.gain, head.final_norm.eps)
            x.copy_(normed)
        return logits
