"""TritonOps: the decoder's steps on a GPU. Few rows go through the skinny kernels, many through cuBLAS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from slipstream.backends.torch.coded_cache import is_coded
from slipstream.backends.torch.cuda.batch import CudaBatch, DeviceRows
from slipstream.backends.torch.cuda.kernels.attention import PagedAttention
from slipstream.backends.torch.cuda.kernels.fp8 import pack_fp8, unpacked_pieces
from slipstream.backends.torch.cuda.kernels.hopper_products import HopperProducts
from slipstream.backends.torch.cuda.kernels.linear import MAX_ROWS, Maker, SkinnyProducts, Tiling
from slipstream.backends.torch.cuda.kernels.many_rows import ManyRows
from slipstream.backends.torch.cuda.kernels.products import Products
from slipstream.backends.torch.cuda.kernels.streamed import StreamedProducts
from slipstream.backends.torch.cuda.kernels.tilings import NARROW_ROWS, Tilings, Trial
from slipstream.backends.torch.ops import (
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
    parts_of,
    run_layers,
)
from slipstream.models.config import DecoderConfig
from slipstream.models.quantised import Fp8Tensor

MAX_TILES = 8192  # of attention: no forward has more rows


def qkv_kind(qk_norm: QKNorm | None, cache: LayerCache) -> Literal["project", "qkv"]:
    """Norms and codes need complete heads: with them the product neither rotates nor writes into the cache."""
    return "project" if qk_norm is not None or is_coded(cache.keys) else "qkv"


class TritonOps:
    """Up to MAX_ROWS rows, a row's result is bit-identical regardless of the other rows; with more rows it is
    not.
    """

    name = "triton"
    takes_quantised = False
    takes_fp8 = False

    def __init__(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, exact: bool, in_cuda: bool = True
    ) -> None:
        """`in_cuda`: products may use kernels in CUDA C++, where there are any."""
        self.activation_dtype = dtype
        self.batch_invariant = exact  # the model then never takes more rows than the skinny kernels do
        self._device = device
        self._config = config
        qkv_outputs = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self._many = ManyRows()
        others = _others(config, dtype, device) if in_cuda else {}
        most, norms = max(config.hidden_size, qkv_outputs), 2 * config.num_layers + 1
        self._skinny = SkinnyProducts(dtype, device, most, norms, others)
        self._attention = PagedAttention(config, dtype, device, MAX_TILES)
        self.tilings = Tilings(device, others)

    @property
    def rows_a_block(self) -> int:
        """Rows of a prompt that attention takes as one block."""
        return self._attention.rows_a_block

    def for_head(self, config: DecoderConfig) -> TritonOps:
        """Ops for a draft head with this layer. Its weights are floats."""
        return TritonOps(config, self.activation_dtype, self._device, self.batch_invariant, self.tilings.streams)

    def pack(self, weight: Weight | Sequence[Weight], bias: torch.Tensor | None = None) -> Linear:
        weight = joined(weight)
        bias = None if bias is None else bias.float().contiguous()
        return Linear(weight.to(self.activation_dtype).contiguous(), weight.shape[0], weight.shape[1], bias)

    def first_outputs(self, weight: Linear, count: int) -> Linear:
        scale = None if weight.scale is None else weight.scale[:count]
        return replace(weight, data=weight.data[:count], outputs=count, scale=scale)

    def embed(self, table: Linear, tokens: torch.Tensor, then: Norm) -> Hidden:
        if len(tokens) > MAX_ROWS:
            return Hidden(table.data[tokens])
        return self._skinny.embed(table, tokens, then)

    def table_of(self, table: Linear, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A table of floats, and where in it the rows of these tokens are."""
        return table.data, tokens

    def forward(self, stack: Stack, batch: DeviceRows, cache: StackCache, features: Features | None) -> Outputs:
        hidden = self.embed(stack.embedding, batch.tokens, then=stack.layers[0].attention_norm)
        self.layers(hidden, stack, batch, cache, features)
        return Outputs(self.logits(hidden.take(batch.logit_rows), stack.final_norm, stack.head))

    def layers(
        self, hidden: Hidden, stack: Stack, batch: DeviceRows, cache: StackCache, features: Features | None
    ) -> None:
        run_layers(self, hidden, stack, batch, cache, features)

    def qkv(
        self, hidden: Hidden, norm: Norm, weight: Linear, qk_norm: QKNorm | None, step: LayerStep[DeviceRows]
    ) -> torch.Tensor:
        kind = qkv_kind(qk_norm, step.cache)
        if hidden.scaled is None:
            qkv = self._many.linear(self._many.norm(hidden.x, norm), weight)
        elif kind == "project" or len(hidden.x) > NARROW_ROWS:
            qkv = self._skinny.normed(hidden, norm, weight, self._tiling(kind, weight, hidden))
        else:
            tiling = self._tiling(kind, weight, hidden)
            return self._skinny.qkv(hidden, norm, weight, step, tiling)
        self._attention.rope_write(qkv, step.batch, step.rope, qk_norm, step.cache)
        return qkv

    def gate(self, hidden: Hidden, norm: Norm, gate_up: Linear) -> torch.Tensor:
        if hidden.scaled is None:
            return self._many.swiglu(self._many.linear(self._many.norm(hidden.x, norm), gate_up))
        return self._skinny.normed(hidden, norm, gate_up, self._tiling("gate", gate_up, hidden), gated=True)

    def add(self, x: torch.Tensor, weight: Linear, hidden: Hidden, then: Norm) -> None:
        if hidden.scaled is None:
            self._many.add(x, weight, hidden.x)
        else:
            self._skinny.add(x, weight, hidden, then, self._tiling("add", weight, hidden))

    def logits(self, hidden: Hidden, norm: Norm, head: Linear) -> torch.Tensor:
        if hidden.scaled is None:
            return self._many.logits(self._many.norm(hidden.x, norm), head)
        return self._skinny.normed(hidden, norm, head, self._tiling("logits", head, hidden), wide=True)

    def attend(self, qkv: torch.Tensor, batch: DeviceRows, config: DecoderConfig, cache: LayerCache) -> torch.Tensor:
        return self._attention.attend(qkv, batch, cache)

    def _tiling(self, kind: str, weight: Linear, hidden: Hidden) -> Tiling:
        return self.tilings.of(kind, weight, len(hidden.x))

    def measure(
        self, products: Sequence[tuple[str, list[Linear]]], batch: CudaBatch, rope: RopeTable, cache: LayerCache
    ) -> None:
        """Finds the best tilings for products of these kinds, each with its weights of all layers, and of as many rows
        as the batch has.
        """
        for kind, weights in products:
            trial = partial(self.trial, kind, weights[0], batch, rope, cache)
            self.tilings.measure(kind, weights, len(batch.tokens), trial)

    def trial(self, kind: str, like: Linear, batch: CudaBatch, rope: RopeTable, cache: LayerCache) -> Trial:
        """Runs one product of this kind and shape with random inputs, to measure tilings."""
        rows = len(batch.tokens)
        x = torch.rand(rows, like.inputs, device=like.data.device).to(self.activation_dtype)  # zeros would be faster
        norm = Norm(torch.ones(max(like.inputs, like.outputs), device=x.device), 1e-5)
        squares = torch.ones(2, rows, dtype=torch.int64, device=x.device)
        stream = torch.zeros(rows, like.outputs, dtype=x.dtype, device=x.device)

        def run(weight: Linear, tiling: Tiling) -> None:
            hidden = Hidden(x, x, squares)
            if kind == "add":
                self._skinny.add(x, weight, Hidden(stream, torch.empty_like(stream), squares), norm, tiling)
            elif kind == "qkv" and rows <= NARROW_ROWS:
                self._skinny.qkv(hidden, norm, weight, LayerStep(rope, batch, self._config, cache), tiling)
            else:
                self._skinny.normed(hidden, norm, weight, tiling, kind == "gate", kind == "logits")

        return run


def _others(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> dict[Maker, Products]:
    kinds: dict[Maker, type[StreamedProducts | HopperProducts]] = {
        "streamed": StreamedProducts,
        "hopper": HopperProducts,
    }
    found = {by: kind.for_model(config, dtype, device) for by, kind in kinds.items()}
    return {by: products for by, products in found.items() if products}


class Fp8Ops(TritonOps):
    """Products of weights that are all in FP8 read them as they are."""

    takes_fp8 = True

    def pack(self, weight: Weight | Sequence[Weight], bias: torch.Tensor | None = None) -> Linear:
        parts = parts_of(weight)
        codes = [part for part in parts if isinstance(part, Fp8Tensor)]
        if len(codes) == len(parts):
            return pack_fp8(codes, None if bias is None else bias.float().contiguous(), self._device)
        return super().pack([self._floats(part) for part in parts], bias)

    def _floats(self, part: Weight) -> Weight:
        if not isinstance(part, Fp8Tensor):
            return part
        packed = pack_fp8([part], None, self._device)
        return torch.cat([floats for _, floats in unpacked_pieces(packed, self.activation_dtype)])
