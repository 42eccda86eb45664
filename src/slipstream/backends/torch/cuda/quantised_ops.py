"""QuantisedOps: the decoder's steps on a GPU with the file's own codes. What is stored as floats runs as in TritonOps.

The residual stream is float32 here: it is small, and codes are made of it directly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl

from slipstream.backends.torch.cuda.batch import CudaBatch, DeviceRows
from slipstream.backends.torch.cuda.kernels.linear import MAX_ROWS, SQUARES_UNIT
from slipstream.backends.torch.cuda.kernels.quantised_kernels import CodeKernels, Source
from slipstream.backends.torch.cuda.kernels.quantised_layout import TILE, CodedLinear, pack_part
from slipstream.backends.torch.cuda.ops import TritonOps
from slipstream.backends.torch.ops import (
    Features,
    Hidden,
    Layer,
    LayerCache,
    LayerStep,
    Linear,
    Norm,
    RopeTable,
    Stack,
    StackCache,
    Weight,
    parts_of,
)
from slipstream.models.config import DecoderConfig
from slipstream.models.quantised import QuantisedTensor, unpacked

_UNPACKED_AT_ONCE = 1 << 26  # weights; 128 MB in bf16
_UNPACK_ABOVE = 64  # rows; the time of a product with codes grows with them: 3.6 times one row's at 64 (8B)


@triton.jit
def ready_kernel(
    x,  # [rows, width] float32
    gain,  # [width] float32
    scaled,  # [rows, width]
    squares,  # [2, rows] int64: of x, and zeros to be added to
    width,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    inside = c < width
    at = row.to(tl.int64) * width + c
    wide = tl.load(x + at, mask=inside, other=0.0)
    tl.store(scaled + at, (wide * tl.load(gain + c, mask=inside, other=0.0)).to(scaled.dtype.element_ty), mask=inside)
    norm = tl.arange(0, 2)
    own = tl.sum((wide * wide * SQUARES_UNIT).to(tl.int64), 0)
    tl.store(squares + norm * tl.num_programs(0) + row, tl.where(norm == 0, own, 0))


class QuantisedOps(TritonOps):
    """A product with codes gives a row the same bits regardless of the other rows, however many there are."""

    takes_quantised = True

    def __init__(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, exact: bool, kernels: CodeKernels,
        heads_stream: bool = True,
    ) -> None:  # fmt: skip
        """Only a head's products may be streamed: those kernels add to a residual stream in 16 bits."""
        super().__init__(config, dtype, device, exact, in_cuda=False)
        self._kernels = kernels
        self._heads_stream = heads_stream

    def for_head(self, config: DecoderConfig) -> TritonOps:
        return _HeadOps(
            config, self.activation_dtype, self._device, self.batch_invariant, self._kernels, self._heads_stream
        )

    # -- weights ------------------------------------------------------------------------------------------------------

    def pack(self, weight: Weight | Sequence[Weight], bias: torch.Tensor | None = None) -> Linear:
        parts = parts_of(weight)
        codes = [part for part in parts if isinstance(part, QuantisedTensor)]
        if len(codes) == len(parts):
            bias = None if bias is None else bias.float().contiguous()
            return CodedLinear.of([pack_part(part, self._device) for part in codes], bias)
        return super().pack([_floats(part, self._device) for part in parts], bias)

    def first_outputs(self, weight: Linear, count: int) -> Linear:
        if isinstance(weight, CodedLinear):
            return weight.first_outputs(count)
        return super().first_outputs(weight, count)

    # -- steps --------------------------------------------------------------------------------------------------------

    def embed(self, table: Linear, tokens: torch.Tensor, then: Norm) -> Hidden:
        if isinstance(table, CodedLinear):
            return Hidden(self._kernels.lookup(table.parts[0], tokens))
        return Hidden(F.embedding(tokens, table.data).float())

    def layers(
        self, hidden: Hidden, stack: Stack, batch: DeviceRows, cache: StackCache, features: Features | None
    ) -> None:
        for i, layer in enumerate(stack.layers):
            if features:
                features.take(i, hidden.x)
            self._layer(hidden, layer, LayerStep(stack.rope, batch, stack.config, cache.of(i)))
        if features:
            features.take(len(stack.layers), hidden.x)

    def _layer(self, hidden: Hidden, layer: Layer, step: LayerStep[DeviceRows]) -> None:
        attended = self.attend(self._qkv(hidden, layer, step), step.batch, step.config, step.cache)
        self.add(attended, layer.output, hidden, layer.mlp_norm)
        if isinstance(layer.gate_up, CodedLinear) and isinstance(layer.down, CodedLinear):
            gate_up = self._product(hidden.x, layer.mlp_norm, layer.gate_up, torch.float32)
            self._multiply(gate_up, "gated", None, layer.down, hidden.x, add=True)
        else:
            self.add(self.gate(hidden, layer.mlp_norm, layer.gate_up), layer.down, hidden, layer.mlp_norm)

    def _qkv(self, hidden: Hidden, layer: Layer, step: LayerStep[DeviceRows]) -> torch.Tensor:
        norm, weight = layer.attention_norm, layer.qkv
        if not isinstance(weight, CodedLinear):
            return self.qkv(self._ready(hidden, norm), norm, weight, layer.qk_norm, step)
        qkv = self._product(hidden.x, norm, weight, self.activation_dtype)
        self._attention.rope_write(qkv, step.batch, step.rope, layer.qk_norm, step.cache)
        return qkv

    def gate(self, hidden: Hidden, norm: Norm, gate_up: Linear) -> torch.Tensor:
        if not isinstance(gate_up, CodedLinear):
            return super().gate(self._ready(hidden, norm), norm, gate_up)
        both = self._product(hidden.x, norm, gate_up, torch.float32)
        return self._many.swiglu(both).to(self.activation_dtype)

    def add(self, x: torch.Tensor, weight: Linear, hidden: Hidden, then: Norm) -> None:
        if isinstance(weight, CodedLinear):
            self._multiply(x, "plain" if x.dtype == torch.float32 else "half", None, weight, hidden.x, add=True)
        elif len(x) > MAX_ROWS:
            hidden.x += self._many.linear(x, weight)
        else:
            super().add(x, weight, self._ready(hidden, then), then)

    def logits(self, hidden: Hidden, norm: Norm, head: Linear) -> torch.Tensor:
        if not isinstance(head, CodedLinear):
            return super().logits(self._ready(hidden, norm), norm, head)
        return self._product(hidden.x, norm, head, torch.float32)

    def measure(
        self, products: Sequence[tuple[str, list[Linear]]], batch: CudaBatch, rope: RopeTable, cache: LayerCache
    ) -> None:
        """Products with codes have no tilings to choose from."""
        floats = [(kind, [w for w in weights if not isinstance(w, CodedLinear)]) for kind, weights in products]
        super().measure([(kind, weights) for kind, weights in floats if weights], batch, rope, cache)

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _product(self, x: torch.Tensor, norm: Norm, weight: CodedLinear, dtype: torch.dtype) -> torch.Tensor:
        out = torch.empty(len(x), weight.outputs, dtype=dtype, device=self._device)
        self._multiply(x, "normed", norm, weight, out)
        return out

    def _multiply(
        self, x: torch.Tensor, source: Source, norm: Norm | None, weight: CodedLinear, out: torch.Tensor,
        add: bool = False,
    ) -> None:  # fmt: skip
        """out = x times weight; `add`: out += x times weight."""
        if len(x) <= _UNPACK_ABOVE or self.batch_invariant:
            self._kernels.multiply(self._kernels.quantise(x, source, norm), weight, out, add)
            return
        product = self._unpacked_product(self._floats(x, source, norm), weight)
        if add:
            out += product
        else:
            out.copy_(product)

    def _floats(self, x: torch.Tensor, source: Source, norm: Norm | None) -> torch.Tensor:
        if source == "gated":
            x = self._many.swiglu(x)
        elif norm:
            x = self._many.norm(x, norm)
        return x.to(self.activation_dtype)

    def _unpacked_product(self, x: torch.Tensor, weight: CodedLinear) -> torch.Tensor:
        """For many rows the weights are unpacked, some outputs at a time, and multiplied as floats are."""
        out = torch.empty(len(x), weight.outputs, dtype=x.dtype, device=x.device)
        step, first = max(_UNPACKED_AT_ONCE // weight.inputs // TILE, 1) * TILE, 0
        for part in weight.parts:
            for start in range(0, part.outputs, step):
                count = min(step, part.outputs - start)
                floats = torch.empty(count, part.inputs, dtype=x.dtype, device=x.device)
                self._kernels.unpack(part, start, floats)
                torch.mm(x, floats.T, out=out[:, first + start : first + start + count])
            first += part.outputs
        if weight.bias is not None:
            out += weight.bias.to(out.dtype)
        return out

    def _ready(self, hidden: Hidden, norm: Norm) -> Hidden:
        """The residual stream as products with weights of floats read it."""
        x = hidden.x
        rows, width = x.shape
        if rows > MAX_ROWS:
            return Hidden(x.to(self.activation_dtype))
        scaled = torch.empty(rows, width, dtype=self.activation_dtype, device=x.device)
        squares = torch.empty(2, rows, dtype=torch.int64, device=x.device)
        ready_kernel[(rows,)](x, norm.gain, scaled, squares, width, BLOCK=triton.next_power_of_2(width), num_warps=8)
        return Hidden(x, scaled, squares)


class _HeadOps(TritonOps):
    """For a draft head of floats whose target has its embedding as codes."""

    def __init__(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, exact: bool, kernels: CodeKernels,
        streams: bool,
    ) -> None:  # fmt: skip
        super().__init__(config, dtype, device, exact, streams)
        self._kernels = kernels

    def table_of(self, table: Linear, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not isinstance(table, CodedLinear):
            return super().table_of(table, tokens)
        return self._kernels.lookup(table.parts[0], tokens), torch.arange(len(tokens), device=self._device)


def _floats(part: Weight, device: torch.device) -> torch.Tensor:
    if isinstance(part, torch.Tensor):
        return part
    assert isinstance(part, QuantisedTensor)
    return torch.from_numpy(unpacked(part.format, part.rows(0, part.shape[0]))).to(device)
