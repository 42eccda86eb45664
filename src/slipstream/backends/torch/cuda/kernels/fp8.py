"""Weights in FP8 (E4M3) on a GPU: one byte each in memory, converted to the type of the activations before the dot.

A word of 16 bits has two weights: of a tile of `tile_inputs` inputs, low bytes are the first half and high bytes the
second. Each half is converted in place, and a sum runs over the inputs in their order. The value of a weight is exact
in bf16; the scale of an output multiplies its float32 sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
import triton
import triton.language as tl

from slipstream.backends.torch.ops import Linear
from slipstream.models.hf.fp8 import nan_in_codes
from slipstream.models.quantised import Fp8Tensor

TILE = 128  # inputs; every tiling of these products has tiles of so many
MIN_TILE = 32  # a dot takes 16 inputs or more, and a tile has two
_WEIGHTS_AT_ONCE = 1 << 26  # weights; 128 MB in bf16
_UNPACKED_BLOCK = 1024  # words of a program
_TINY = 1e-20  # of an output whose weights are all 0
# The exponent of E4M3 has a bias of 7, that of bf16 and float32 one of 127: moved to its place, it is 120 too small.
# Multiplying with 2 ** 120 is exact, also for numbers below the normal ones. Two weights at once:
# prmt: each byte and 8 copies of its sign; shl, and: sign, exponent and mantissa to their places; fma: times 2 ** 120
_ASM = tl.constexpr("""{
    .reg .b32 pair, factor, zero;
    prmt.b32 pair, $1, 0, SELECTOR;
    shl.b32 pair, pair, 4;
    and.b32 pair, pair, 0x87f087f0;
    mov.b32 factor, 0x7b807b80;
    mov.b32 zero, 0x80008000;
    fma.rn.bf16x2 $0, pair, factor, zero;
}""")
_LOW_ASM = tl.constexpr(_ASM.value.replace("SELECTOR", "0xa280"))
_HIGH_ASM = tl.constexpr(_ASM.value.replace("SELECTOR", "0xb391"))
_BIAS = tl.constexpr(2.0**120)


@triton.jit
def _widened(
    words,  # int16
    HIGH: tl.constexpr,
    dtype: tl.constexpr,  # of the values: bfloat16, or float32
):
    """The values of the low or of the high bytes, without their scale."""
    if dtype == tl.bfloat16:
        asm: tl.constexpr = _HIGH_ASM if HIGH else _LOW_ASM
        values = tl.inline_asm_elementwise(asm, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    else:
        tl.static_assert(dtype == tl.float32, "activations are bf16 or float32")
        code = words.to(tl.int32) >> (8 if HIGH else 0)
        bits = ((code & 0x7F) << 20) | ((code & 0x80) << 24)
        values = bits.to(tl.float32, bitcast=True) * _BIAS
    return values


@triton.jit
def fp8_dot(
    first,  # [rows, inputs / 2] of a tile
    second,  # [rows, inputs / 2], the other half of it
    words,  # [inputs / 2, outputs] int16
    total,  # [rows, outputs] float32
    PRECISION: tl.constexpr,
):
    """total + x * weights, without their scales. The inputs in their order."""
    total = tl.dot(first, _widened(words, False, first.dtype), total, input_precision=PRECISION)
    return tl.dot(second, _widened(words, True, first.dtype), total, input_precision=PRECISION)


@triton.jit
def unpack_kernel(
    words,  # [outputs, inputs / 2] int16
    scale,  # [outputs] float32
    out,  # [outputs, inputs]
    inputs,
    HALF: tl.constexpr,  # inputs of half a tile
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < inputs // 2
    pair = tl.load(words + row * (inputs // 2) + at, mask=inside, other=0)
    factor = tl.load(scale + row)
    low_at = out + row * inputs + at // HALF * (2 * HALF) + at % HALF
    tl.store(low_at, (_widened(pair, False, tl.float32) * factor).to(out.dtype.element_ty), mask=inside)
    tl.store(low_at + HALF, (_widened(pair, True, tl.float32) * factor).to(out.dtype.element_ty), mask=inside)


def tile_inputs(inputs: int) -> int:
    """Inputs of a tile, as a power of two that they are a multiple of."""
    tile = TILE
    while inputs % tile:
        tile //= 2
    return tile


def pack_fp8(parts: Sequence[Fp8Tensor], bias: torch.Tensor | None, device: torch.device) -> Linear:
    """The parts of a product, one after another. Raises DamagedModelError for NaN."""
    words = torch.cat([_words(part, device) for part in parts])
    scale = torch.from_numpy(np.concatenate([part.scales for part in parts])).to(device)
    return Linear(words, len(words), parts[0].shape[1], bias, scale)


def rounded(weight: Linear) -> Linear:
    """The same product with its floats rounded to FP8."""
    pieces = [_rounded_rows(rows) for rows in weight.data.split(max(_WEIGHTS_AT_ONCE // weight.inputs, 1))]
    words, scales = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return replace(weight, data=words, scale=scales)


def _rounded_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, inputs / 2] words, and [rows] scales."""
    scale = rows.abs().amax(1, keepdim=True).float().clamp(min=_TINY) / torch.finfo(torch.float8_e4m3fn).max
    codes = (rows.float() / scale).to(torch.float8_e4m3fn).view(torch.uint8)
    return _as_words(codes), scale.flatten()


def _words(part: Fp8Tensor, device: torch.device) -> torch.Tensor:
    codes = torch.from_numpy(np.array(part.codes)).to(device)
    if bool(((codes & 127) == 127).any()):
        raise nan_in_codes(part.name)
    return _as_words(codes)


def _as_words(codes: torch.Tensor) -> torch.Tensor:
    """[outputs, inputs / 2] int16"""
    outputs, inputs = codes.shape
    halves = codes.view(outputs, -1, 2, tile_inputs(inputs) // 2)
    return halves.transpose(2, 3).contiguous().view(torch.int16).view(outputs, inputs // 2)


def unpacked_pieces(weight: Linear, dtype: torch.dtype) -> Iterator[tuple[slice, torch.Tensor]]:
    """Some outputs at a time, and their weights [outputs, inputs] as floats, scales included."""
    assert weight.scale is not None
    inputs, step = weight.inputs, max(_WEIGHTS_AT_ONCE // weight.inputs, 1)
    blocks = triton.cdiv(inputs // 2, _UNPACKED_BLOCK)
    for start in range(0, weight.outputs, step):
        piece = slice(start, min(start + step, weight.outputs))
        words, scale = weight.data[piece], weight.scale[piece]
        floats = torch.empty(len(words), inputs, dtype=dtype, device=words.device)
        unpack_kernel[(len(words), blocks)](
            words, scale, floats, inputs, HALF=tile_inputs(inputs) // 2, BLOCK=_UNPACKED_BLOCK, num_warps=4
        )
        yield piece, floats
