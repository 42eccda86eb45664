"""ManyRows: the steps for more rows than the skinny kernels take. Products by cuBLAS, a kernel for each step between.

Numbers go through memory in the model's own type: each kernel reads its input once and writes its output once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl

from slipstream.backends.torch.cuda.kernels.fp8 import unpacked_pieces
from slipstream.backends.torch.ops import Linear, Norm

_SWIGLU_BLOCK = 1024  # outputs of a program


@triton.jit
def norm_kernel(
    x,  # [rows, width]
    gain,  # [width] float32
    out,  # [rows, width]
    width,
    eps,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    inside = c < width
    own = tl.load(x + row * width + c, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(own * own, 0) / width + eps)
    own = own * scale * tl.load(gain + c, mask=inside, other=0.0)
    tl.store(out + row * width + c, own.to(out.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_kernel(
    gate_up,  # [rows, 2 width], gates first
    out,  # [rows, width]
    width,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < width
    gate = tl.load(gate_up + row * 2 * width + c, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + c, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


class ManyRows:
    """Stateless: a step takes what memory it needs from torch."""

    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        rows, width = x.shape
        out = torch.empty_like(x)
        norm_kernel[(rows,)](
            x, norm.gain, out, width, norm.eps, BLOCK=triton.next_power_of_2(width), num_warps=8 if width > 2048 else 4
        )
        return out

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        if weight.scale is not None:
            return self._unpacked_product(x, weight, x.dtype)
        return F.linear(x, weight.data, None if weight.bias is None else weight.bias.to(x.dtype))

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of [rows, 2 width], gates first."""
        rows, width = len(gate_up), gate_up.shape[1] // 2
        out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
        swiglu_kernel[(rows, triton.cdiv(width, _SWIGLU_BLOCK))](gate_up, out, width, BLOCK=_SWIGLU_BLOCK, num_warps=4)
        return out

    def add(self, x: torch.Tensor, weight: Linear, stream: torch.Tensor) -> None:
        """Adds linear(x) to the residual stream, in one product."""
        if weight.scale is None:
            stream.addmm_(x, weight.data.t())
            return
        for piece, floats in unpacked_pieces(weight, x.dtype):
            stream[:, piece].addmm_(x, floats.t())

    def logits(self, x: torch.Tensor, head: Linear) -> torch.Tensor:
        """In float32, as they are summed: rounding them would make ties."""
        if head.scale is not None:
            return self._unpacked_product(x, head, torch.float32)
        return _wide_product(x, head.data)

    def _unpacked_product(self, x: torch.Tensor, weight: Linear, dtype: torch.dtype) -> torch.Tensor:
        """Of weights in FP8, which become floats some outputs at a time."""
        out = torch.empty(len(x), weight.outputs, dtype=dtype, device=x.device)
        for piece, floats in unpacked_pieces(weight, x.dtype):
            if dtype == x.dtype:
                torch.mm(x, floats.t(), out=out[:, piece])
            else:
                out[:, piece] = _wide_product(x, floats)
        if weight.bias is not None:
            out += weight.bias.to(dtype)
        return out


def _wide_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """In float32, whatever is multiplied."""
    if x.is_cuda and x.dtype != torch.float32:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return F.linear(x, weight).float()
