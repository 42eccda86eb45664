"""ReferenceOps: the decoder's steps in plain torch. Slow, on any device, and what the kernels are tested against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812

from slipstream.backends.torch.batch import Batch
from slipstream.backends.torch.coded_cache import read_cells, write_cells
from slipstream.backends.torch.ops import (
    DraftHead,
    EagerOps,
    Features,
    Hidden,
    LayerCache,
    LayerStep,
    Linear,
    Norm,
    Outputs,
    QKNorm,
    RopeTable,
    Stack,
    StackCache,
    Weight,
    joined,
    run_layers,
)
from slipstream.models.config import DecoderConfig


class ReferenceOps(EagerOps):
    """With `row_by_row` each row goes through every product alone: slow, but a row's bits never depend on other
    rows.
    """

    name = "torch"

    def __init__(self, dtype: torch.dtype, row_by_row: bool = False) -> None:
        self.activation_dtype = dtype
        self.batch_invariant = row_by_row

    def pack(self, weight: Weight | Sequence[Weight], bias: torch.Tensor | None = None) -> Linear:
        weight = joined(weight)
        bias = None if bias is None else bias.to(self.activation_dtype)
        return Linear(weight.to(self.activation_dtype), weight.shape[0], weight.shape[1], bias)

    def first_outputs(self, weight: Linear, count: int) -> Linear:
        return replace(weight, data=weight.data[:count], outputs=count)

    def forward(self, stack: Stack, batch: Batch, cache: StackCache, features: Features | None) -> Outputs:
        hidden = Hidden(self.lookup(stack.embedding, batch.tokens))
        run_layers(self, hidden, stack, batch, cache, features)
        last = self.norm(hidden.take(batch.logit_rows).x, stack.final_norm)
        return Outputs(self.linear(last, stack.head).float())

    def head_layer(self, head: DraftHead, token: torch.Tensor, x: torch.Tensor, batch: Batch) -> None:
        layer, config, hidden = head.layer, head.config.layer, Hidden(x)
        normed = self.norm(x, layer.attention_norm)
        qkv = self.linear(torch.cat((self.norm(token, head.token_norm), normed), dim=1), layer.qkv)
        if head.config.norm_before_residual:
            x.copy_(normed)
        self.rope_write(qkv, batch, config, head.rope, layer.qk_norm, head.cache)
        self.add(self.attend(qkv, batch, config, head.cache), layer.output, hidden, layer.mlp_norm)
        self.add(self.gate(hidden, layer.mlp_norm, layer.gate_up), layer.down, hidden, head.final_norm)

    # -- the steps of a layer -----------------------------------------------------------------------------------------

    def qkv(
        self, hidden: Hidden, norm: Norm, weight: Linear, qk_norm: QKNorm | None, step: LayerStep[Batch]
    ) -> torch.Tensor:
        qkv = self.linear(self.norm(hidden.x, norm), weight)
        self.rope_write(qkv, step.batch, step.config, step.rope, qk_norm, step.cache)
        return qkv

    def gate(self, hidden: Hidden, norm: Norm, gate_up: Linear) -> torch.Tensor:
        return self.swiglu(self.linear(self.norm(hidden.x, norm), gate_up))

    def add(self, x: torch.Tensor, weight: Linear, hidden: Hidden, then: Norm) -> None:
        hidden.x += self.linear(x, weight)

    # -- their parts --------------------------------------------------------------------------------------------------

    def lookup(self, table: Linear, tokens: torch.Tensor) -> torch.Tensor:
        return table.data[tokens].to(self.activation_dtype)

    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + norm.eps)
        return (y * norm.gain.float()).to(x.dtype)

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        if self.batch_invariant:
            return torch.stack([F.linear(row, weight.data, weight.bias) for row in x])
        return F.linear(x, weight.data, weight.bias)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def rope_write(
        self,
        qkv: torch.Tensor,
        batch: Batch,
        config: DecoderConfig,
        rope: RopeTable,
        norm: QKNorm | None,
        cache: LayerCache,
    ) -> None:
        """Normalises and rotates queries and keys of `qkv` in place; writes keys and values into the cache."""
        rows, q_heads, kv_heads = len(qkv), config.num_heads, config.num_kv_heads
        heads = qkv.view(rows, q_heads + 2 * kv_heads, config.head_dim)
        q, k, v = torch.split(heads, [q_heads, kv_heads, kv_heads], dim=1)
        if norm is not None:
            q.copy_(self.norm(q, Norm(norm.query, config.norm_eps)))
            k.copy_(self.norm(k, Norm(norm.key, config.norm_eps)))
        positions = batch.of("position").long()
        cosine, sine = rope.cosine[positions].unsqueeze(1), rope.sine[positions].unsqueeze(1)
        for part in (q, k):
            part.copy_(rotated(part, cosine, sine))
        cells = batch.of("cell").long()
        write_cells(cache.keys, cells, k)
        write_cells(cache.values, cells, v)

    def attend(self, qkv: torch.Tensor, batch: Batch, config: DecoderConfig, cache: LayerCache) -> torch.Tensor:
        rows = len(qkv)
        heads = qkv.view(rows, -1, config.head_dim)[:, : config.num_heads]
        out = torch.empty(rows, config.num_heads, config.head_dim, dtype=qkv.dtype, device=qkv.device)
        group = config.num_heads // config.num_kv_heads
        for r in range(rows):
            cells = _keys_of(batch, r, config.sliding_window)
            keys, values = (  # [keys, heads, dim]
                read_cells(part, cells, config.head_dim).to(qkv.dtype).repeat_interleave(group, dim=1)
                for part in (cache.keys, cache.values)
            )
            scores = torch.einsum("hd,khd->hk", heads[r], keys).float() * config.head_dim**-0.5
            out[r] = torch.einsum("hk,khd->hd", scores.softmax(-1).to(qkv.dtype), values)
        return out.view(rows, -1)


def rotated(part: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """`part` [..., length, head_dim] by position; `cosine` and `sine` [length, head_dim / 2] float32."""
    a, b = part.float().chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1).to(part.dtype)


def _keys_of(batch: Batch, r: int, window: int | None) -> torch.Tensor:
    """Cells that row r sees, in the order of the text."""
    positions = torch.arange(int(batch.of("prefix")[r]), device=batch.indices.device)
    pages = batch.of("pages")[int(batch.of("sequence")[r])].long()
    cells = pages[positions // batch.page_size] * batch.page_size + positions % batch.page_size
    first, end = batch.of("extra_from")[r : r + 2].tolist()
    cells = torch.cat((cells, batch.of("extra")[first:end].long()))
    return cells if window is None else cells[-window:]
