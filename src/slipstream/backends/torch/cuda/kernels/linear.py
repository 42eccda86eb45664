"""The skinny product: a few rows against a weight that is read once, at the speed of memory.

Small steps have no kernel of their own. A norm is a gain per column and a factor per row: the kernel that writes the
residual stream also writes it times the next norm's gain, and adds up its squares. The product uses that, and 1 / rms
multiplies the sum at the end. SwiGLU and the residual are applied at the end too.

A row's sum runs over k in the same order for any other rows, and squares are added as integers, so a row's result is
bit-identical regardless of the other rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from slipstream.backends.torch.cuda.batch import DeviceRows
from slipstream.backends.torch.cuda.kernels.early_start import (
    can_start_early,
    launch_options,
    start_next_kernel,
    wait_for_last_kernel,
)
from slipstream.backends.torch.cuda.kernels.fp8 import fp8_dot, tile_inputs
from slipstream.backends.torch.cuda.kernels.products import Products, Shares
from slipstream.backends.torch.kv_pool import PAGE_SIZE
from slipstream.backends.torch.ops import Hidden, LayerStep, Linear, Norm

MAX_SKINNY_ROWS = 64  # of a step of a head's draft
MAX_ROWS = 256  # that these kernels take; from there on products are bound by arithmetic, and cuBLAS is faster
MAX_SPLIT = 4
_MIN_TMA_ROWS = 64  # of a tile that comes through the tensor memory accelerator, as its weights do
SQUARES_UNIT = tl.constexpr(2.0**28)  # integers add up the same in any order; overflows beyond |x| of 180,000
_SHARED_BYTES = 200_000  # of a multiprocessor, for the tiles on their way


Maker = Literal["triton", "streamed", "hopper"]  # the kernels here, or those of streamed.cu or hopper_products.cu


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut: outputs and inputs of a tile, and in how many shares the inputs are added up."""

    block_n: int
    block_k: int
    stages: int
    split: int = 1
    tma: bool = False  # weights, and rows where they are many, come through the tensor memory accelerator
    warps: int = 4
    block_r: int = 64  # rows of a tile, at most
    share: int | None = None  # inputs of one of them; None: equal shares of whole tiles
    in_turn: bool = False  # one program adds up all shares; else each has one of its own
    turned: bool = False  # the tensor cores take outputs for rows, of which they want 64, and rows for outputs
    by: Maker = "triton"  # others cut their tiles themselves

    def rows(self, rows: int) -> int:
        """Rows of a tile, as a power of two."""
        return min(self.block_r, max(16, 1 << (rows - 1).bit_length()))

    @property
    def programs(self) -> int:
        """That have a part of the same sum."""
        return 1 if self.in_turn else self.split

    def inputs_of_share(self, inputs: int) -> int:
        return self.share or -(-(inputs // self.block_k) // self.split) * self.block_k

    def like(self, other: Tiling, inputs: int, item_bytes: int) -> Tiling:
        """The same with the sums of another tiling: those of a row then have the same bits."""
        share = other.fitted(inputs, item_bytes, False, 16).inputs_of_share(inputs)
        return replace(self, split=other.split, share=share, in_turn=True)

    def fitted(self, inputs: int, item_bytes: int, gated: bool, block_r: int) -> Tiling:
        """The same for inputs that are no multiple of its tile, and within the memory of a multiprocessor."""
        block_k = self.block_k * 2 // max(item_bytes, 2)
        while inputs % block_k or (self.share or 0) % block_k:
            block_k //= 2
        stage_bytes = (self.block_n * (2 if gated else 1) + block_r) * block_k * item_bytes
        stages = max(2, min(self.stages, _SHARED_BYTES // stage_bytes))
        return replace(self, block_k=block_k, stages=stages, tma=self.tma and item_bytes == 2 and block_k >= 64)


@triton.jit
def _cells(BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr):
    return tl.arange(0, BLOCK_R)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]


@triton.jit
def _is_last(arrived, SPLIT: tl.constexpr):
    """Whether all other programs of the tile have stored their parts: this one then adds them up, in their order."""
    tl.debug_barrier()
    is_last = tl.atomic_add(arrived, 1, sem="acq_rel") == SPLIT - 1
    if is_last:
        tl.store(arrived, 0)
    return is_last


@triton.jit
def finite_value(x):
    """A value as it is stored: 0 times it must be 0, for rows of the same stream that don't see it.

    Rows that do see it still learn of NaN: a row with NaN has NaN in its key too. Beyond float16 it saturates.
    """
    largest: tl.constexpr = 65504.0 if x.dtype == tl.float16 else 3.3e38
    return tl.where(x == x, tl.minimum(tl.maximum(x, -largest), largest), 0.0).to(x.dtype)


@triton.jit
def rotated(x, other, cosine, sine):
    """x * cosine + other * sine, rounded in the same places wherever it is computed."""
    return tl.fma(x, cosine, other * sine)


@triton.jit
def scaled_sum(total, scale, bias):
    """total * scale + bias, rounded once wherever it is computed."""
    return tl.fma(total, tl.broadcast_to(scale, total.shape), tl.broadcast_to(bias, total.shape))


@triton.jit
def _dot(a, second, w, total, PACKED: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr):
    """total + x * w, or the same turned. `second`: the other half of x where an element of `w` has two weights."""
    packed: tl.constexpr = PACKED == 2
    if TURNED:
        total = tl.dot(w.T, a.T, total, input_precision=PRECISION)
    else:
        total = fp8_dot(a, second, w, total, PRECISION) if packed else tl.dot(a, w, total, input_precision=PRECISION)
    return total


@triton.jit
def linear_kernel(
    x,  # [rows, K]. A pointer, or with ROWS_TMA a descriptor
    weight,  # [N, K / PACKED]; gated: [2 N, K / PACKED], gates first. A pointer, or with TMA a descriptor
    output_scale,  # [N] or gated [2 N] float32, of weights in FP8
    squares,  # [rows] int64, summed over the row: with NORM of what x was made from, with ADD of what out becomes
    bias,  # [N] float32
    out,  # [rows, N]; with ADD the residual stream, added to in place
    gain,  # [N] float32, of the norm that reads the residual stream next
    scaled,  # [rows, N] the residual stream times that gain
    scratch,  # [tiles, SPLIT, BLOCK_R, BLOCK_N] float32
    arrived,  # [tiles] int32, zero before and after
    rows,
    N,
    K,
    share,  # inputs that are added up by themselves
    eps,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,  # programs, each with a share
    SHARES: tl.constexpr,  # or how many shares this one has, in turn
    PACKED: tl.constexpr,  # weights of an element: 1, or 2 of FP8
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    TMA: tl.constexpr,
    ROWS_TMA: tl.constexpr,
    TURNED: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    if GATED:  # only `total` is added up over the programs of a tile, not `up`
        tl.static_assert(SPLIT * SHARES == 1, "a gated product can't be split")
    row_tile = tl.program_id(0)
    n_tile = tl.program_id(1)
    r0 = row_tile * BLOCK_R
    r = r0 + tl.arange(0, BLOCK_R)
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows = r < rows
    inside = in_rows[:, None] & (n < N)[None, :]
    at = r[:, None].to(tl.int64) * N + n[None, :]
    wait_for_last_kernel(EARLY)

    if ADD and not ROWS_TMA:  # early, so that it is there in time; many rows need the registers
        old = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        sums = tl.load(squares + r, mask=in_rows, other=0)

    k = tl.arange(0, BLOCK_K // PACKED)
    width = K // PACKED
    if not ROWS_TMA:
        x_at = x + r[:, None] * K + k[None, :]
    if not TMA:
        w_at = weight + tl.where(n < N, n, 0)[None, :].to(tl.int64) * width + k[:, None]
    tall: tl.constexpr = BLOCK_N if TURNED else BLOCK_R
    wide: tl.constexpr = BLOCK_R if TURNED else BLOCK_N
    total = tl.zeros([tall, wide], tl.float32)
    up = tl.zeros([tall, wide], tl.float32)
    for i in tl.static_range(SHARES):
        begin = (tl.program_id(2) + i) * share
        part = tl.zeros([tall, wide], tl.float32)
        for k0 in tl.range(begin, tl.minimum(begin + share, K), BLOCK_K, num_stages=STAGES):
            a = x.load([r0, k0]) if ROWS_TMA else tl.load(x_at + k0, mask=in_rows[:, None], other=0.0)
            second = a
            if PACKED == 2:
                k1 = k0 + BLOCK_K // 2
                second = x.load([r0, k1]) if ROWS_TMA else tl.load(x_at + k1, mask=in_rows[:, None], other=0.0)
            word = k0 // PACKED
            w = weight.load([n_tile * BLOCK_N, word]).T if TMA else tl.load(w_at + word, eviction_policy="evict_first")
            part = _dot(a, second, w, part, PACKED, TURNED, PRECISION)
            if GATED and TMA:
                w = weight.load([N + n_tile * BLOCK_N, word]).T
            elif GATED:
                w = tl.load(w_at + N.to(tl.int64) * width + word, eviction_policy="evict_first")
            if GATED:
                up = _dot(a, second, w, up, PACKED, TURNED, PRECISION)
        total = part if i == 0 else total + part
    if TURNED:
        total, up = total.T, up.T

    start_next_kernel(EARLY)
    if SPLIT > 1:
        size: tl.constexpr = BLOCK_R * BLOCK_N
        tile = n_tile * tl.num_programs(0) + row_tile
        parts = scratch + tile * (SPLIT * size) + _cells(BLOCK_R, BLOCK_N)
        tl.store(parts + tl.program_id(2) * size, total)
        if not _is_last(arrived + tile, SPLIT):
            return
        total = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
        for i in tl.static_range(SPLIT):
            total += tl.load(parts + i * size, cache_modifier=".cg")

    if PACKED == 2:
        total *= tl.load(output_scale + n, mask=n < N, other=0.0)[None, :]
        if GATED:
            up *= tl.load(output_scale + N + n, mask=n < N, other=0.0)[None, :]
    scale = tl.full([BLOCK_R, 1], 1.0, tl.float32)
    if NORM:
        scale = tl.rsqrt(sums.to(tl.float32) / SQUARES_UNIT / K + eps)[:, None]
        up *= scale
    if BIAS:
        total = scaled_sum(total, scale, tl.load(bias + n, mask=n < N, other=0.0)[None, :])
    else:
        total *= scale
    if GATED:
        total = total * tl.sigmoid(total) * up
    if ADD:
        if ROWS_TMA:
            old = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
        new = (old + total).to(out.dtype.element_ty)
        floats = new.to(tl.float32)
        next_gain = tl.load(gain + n, mask=n < N, other=0.0)[None, :]
        tl.store(scaled + at, (floats * next_gain).to(scaled.dtype.element_ty), mask=inside)
        integers = tl.where(inside, floats * floats * SQUARES_UNIT, 0.0).to(tl.int64)
        tl.atomic_add(squares + r, tl.sum(integers, 1), mask=in_rows, sem="relaxed")
        tl.store(out + at, new, mask=inside)
    else:
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def qkv_kernel(
    x,  # [rows, K]
    weight,  # [(HEADS + 2 KV_HEADS) * D, K / PACKED]
    output_scale,  # [(HEADS + 2 KV_HEADS) * D] float32, of weights in FP8
    squares,  # [rows] int64, summed over the rows that x was made from
    bias,  # [(HEADS + 2 KV_HEADS) * D] float32
    queries,  # [rows, HEADS * D]
    position,  # [rows] int32, rotary
    slot,  # [rows] int32, where in its sequence a row is kept
    page_from,  # [rows] int32, where its sequence's pages begin in `pages`
    pages,  # int32
    cosine,  # [context, D / 2] float32
    sine,
    keys,  # [cells, KV_HEADS, D]
    values,
    scratch,  # [tiles, SPLIT, 2, BLOCK_R, BLOCK_N] float32
    arrived,  # [tiles] int32, zero before and after
    rows,
    K,
    share,  # inputs of a program
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    PACKED: tl.constexpr,  # weights of an element: 1, or 2 of FP8
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Queries, keys and values of norm(x), rotated, keys and values straight into the cache.

    Rotation turns pairs of outputs half a head apart, so a program has both halves of its pairs.
    """
    half: tl.constexpr = D // 2
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    pair = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows = r < rows
    in_n = pair < (HEADS + 2 * KV_HEADS) * half
    inside = in_rows[:, None] & in_n[None, :]
    head = pair // half
    j = pair % half
    n = tl.where(in_n, head * D + j, 0)
    is_value = (head >= HEADS + KV_HEADS)[None, :]
    wait_for_last_kernel(EARLY)
    angle = tl.load(position + r, mask=in_rows, other=0).to(tl.int64)[:, None] * half + j[None, :]
    turned = inside & ~is_value
    c = tl.load(cosine + angle, mask=turned, other=1.0)
    s = tl.load(sine + angle, mask=turned, other=0.0)
    place = tl.load(slot + r, mask=in_rows, other=0)
    page = tl.load(pages + tl.load(page_from + r, mask=in_rows, other=0) + place // PAGE, mask=in_rows, other=0)
    cell = (page.to(tl.int64) * PAGE + place % PAGE)[:, None] * KV_HEADS

    sums = tl.load(squares + r, mask=in_rows, other=0)
    k = tl.arange(0, BLOCK_K // PACKED)
    x_at = x + r[:, None] * K + k[None, :]
    width = K // PACKED
    w_at = weight + n[None, :].to(tl.int64) * width + k[:, None]
    low = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    high = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    begin = tl.program_id(2) * share
    for k0 in tl.range(begin, tl.minimum(begin + share, K), BLOCK_K, num_stages=STAGES):
        a = tl.load(x_at + k0, mask=in_rows[:, None], other=0.0)
        second = tl.load(x_at + k0 + BLOCK_K // 2, mask=in_rows[:, None], other=0.0) if PACKED == 2 else a
        word = k0 // PACKED
        low = _dot(a, second, tl.load(w_at + word, eviction_policy="evict_first"), low, PACKED, False, PRECISION)
        w_high = tl.load(w_at + half * width + word, eviction_policy="evict_first")
        high = _dot(a, second, w_high, high, PACKED, False, PRECISION)
    start_next_kernel(EARLY)
    if SPLIT > 1:
        size: tl.constexpr = BLOCK_R * BLOCK_N
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        parts = scratch + tile * (2 * SPLIT * size) + _cells(BLOCK_R, BLOCK_N)
        tl.store(parts + tl.program_id(2) * 2 * size, low)
        tl.store(parts + (tl.program_id(2) * 2 + 1) * size, high)
        if not _is_last(arrived + tile, SPLIT):
            return
        low = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
        high = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
        for i in tl.static_range(SPLIT):
            low += tl.load(parts + i * 2 * size, cache_modifier=".cg")
            high += tl.load(parts + (i * 2 + 1) * size, cache_modifier=".cg")
    if PACKED == 2:
        low *= tl.load(output_scale + n, mask=in_n, other=0.0)[None, :]
        high *= tl.load(output_scale + n + half, mask=in_n, other=0.0)[None, :]
    scale = tl.rsqrt(sums.to(tl.float32) / SQUARES_UNIT / K + eps)[:, None]
    if BIAS:
        low = scaled_sum(low, scale, tl.load(bias + n, mask=in_n, other=0.0)[None, :])
        high = scaled_sum(high, scale, tl.load(bias + n + half, mask=in_n, other=0.0)[None, :])
    else:
        low *= scale
        high *= scale
    dtype = queries.dtype.element_ty
    low, high = low.to(dtype).to(tl.float32), high.to(dtype).to(tl.float32)
    low_out = rotated(low, -high, c, s).to(dtype)
    high_out = rotated(high, low, c, s).to(dtype)
    query_at = queries + r[:, None].to(tl.int64) * (HEADS * D) + n[None, :]
    is_query = inside & (head < HEADS)[None, :]
    tl.store(query_at, low_out, mask=is_query)
    tl.store(query_at + half, high_out, mask=is_query)
    is_key = turned & (head >= HEADS)[None, :]
    key_at = keys + (cell + (head - HEADS)[None, :]) * D + j[None, :]
    tl.store(key_at, low_out, mask=is_key)
    tl.store(key_at + half, high_out, mask=is_key)
    value_at = values + (cell + (head - HEADS - KV_HEADS)[None, :]) * D + j[None, :]
    tl.store(value_at, finite_value(low_out), mask=inside & is_value)
    tl.store(value_at + half, finite_value(high_out), mask=inside & is_value)


@triton.jit
def embed_kernel(
    tokens,  # [rows] int32
    table,  # [vocab, width]
    gain,  # [width] float32, of the first norm
    x,  # [rows, width]
    scaled,  # [rows, width]
    squares,  # [norms, rows] int64: of the first norm, and zeros for the others to be added to
    norms,
    width,
    BLOCK: tl.constexpr,
    NORMS: tl.constexpr,  # as a power of two
):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    inside = c < width
    value = tl.load(table + tl.load(tokens + row).to(tl.int64) * width + c, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    at = row.to(tl.int64) * width + c
    tl.store(x + at, value.to(x.dtype.element_ty), mask=inside)
    tl.store(scaled + at, (wide * tl.load(gain + c, mask=inside, other=0.0)).to(x.dtype.element_ty), mask=inside)
    norm = tl.arange(0, NORMS)
    own = tl.sum((wide * wide * SQUARES_UNIT).to(tl.int64), 0)
    tl.store(squares + norm * tl.num_programs(0) + row, tl.where(norm == 0, own, 0), mask=norm < norms)


class SkinnyProducts:
    """Launches the kernels above, with the scratch they share."""

    def __init__(
        self, dtype: torch.dtype, device: torch.device, max_outputs: int, num_norms: int,
        others: Mapping[Maker, Products] | None = None,
    ) -> None:  # fmt: skip
        """Scratch has its final size from the start: captured graphs keep its address.

        `max_outputs`: of a product that may be split. `num_norms`: that read the residual stream in a forward.
        `others`: launch those whose tiling says so.
        """
        self._dtype = dtype
        self._num_norms = num_norms
        self._device = device
        self._scratch = torch.empty(MAX_ROWS * MAX_SPLIT * (max_outputs + 128), device=device)
        self._arrived = torch.zeros(MAX_ROWS // 64 * (max_outputs // 16 + 1), dtype=torch.int32, device=device)
        self._precision = "ieee" if dtype == torch.float32 else "tf32"
        self._early = can_start_early(device)
        self._others = others or {}

    def embed(self, table: Linear, tokens: torch.Tensor, then: Norm) -> Hidden:
        rows, width = len(tokens), table.inputs
        x, scaled = (torch.empty(rows, width, dtype=self._dtype, device=self._device) for _ in range(2))
        squares = torch.empty(self._num_norms, rows, dtype=torch.int64, device=self._device)
        embed_kernel[(rows,)](
            tokens, table.data, then.gain, x, scaled, squares, self._num_norms, width,
            BLOCK=triton.next_power_of_2(width), NORMS=triton.next_power_of_2(self._num_norms), num_warps=8,
        )  # fmt: skip
        return Hidden(x, scaled, squares)

    def normed(
        self, hidden: Hidden, norm: Norm, weight: Linear, tiling: Tiling, gated: bool = False, wide: bool = False
    ) -> torch.Tensor:
        """linear(norm(x)), or with `gated` its SwiGLU. `wide`: in float32."""
        assert hidden.scaled is not None
        outputs = weight.outputs // 2 if gated else weight.outputs
        dtype = torch.float32 if wide else self._dtype
        out = torch.empty(len(hidden.x), outputs, dtype=dtype, device=self._device)
        if other := self._others.get(tiling.by):
            if gated:
                other.gated(hidden, norm, weight, out)
            else:
                other.plain(hidden, norm, weight, _shares(tiling, weight), out)
        else:
            self._launch(hidden.scaled, weight, tiling, out, hidden, norm, gated=gated)
        return out

    def qkv(
        self, hidden: Hidden, norm: Norm, weight: Linear, step: LayerStep[DeviceRows], tiling: Tiling
    ) -> torch.Tensor:
        """Rotated queries [rows, heads * head_dim]; keys and values go into the cache."""
        batch, config, rope, cache = step.batch, step.config, step.rope, step.cache
        assert hidden.scaled is not None and hidden.squares is not None
        rows, width = len(hidden.x), config.num_heads * config.head_dim
        queries = torch.empty(rows, width, dtype=self._dtype, device=self._device)
        if other := self._others.get(tiling.by):
            other.qkv(hidden, norm, weight, step, _shares(tiling, weight), queries)
            return queries
        block_r = tiling.rows(rows)
        cut = _cut(tiling, weight, True, block_r)
        qkv_kernel[(triton.cdiv(rows, block_r), triton.cdiv(weight.outputs // 2, cut.block_n), cut.split)](
            hidden.scaled, weight.data, norm.gain if weight.scale is None else weight.scale, hidden.squares,
            norm.gain if weight.bias is None else weight.bias, queries,
            batch.position, batch.slot, batch.page_from, batch.pages, rope.cosine, rope.sine, cache.keys, cache.values,
            self._scratch, self._arrived, rows, weight.inputs, cut.inputs_of_share(weight.inputs), norm.eps,
            HEADS=config.num_heads, KV_HEADS=config.num_kv_heads, D=config.head_dim, PAGE=PAGE_SIZE,
            BLOCK_R=block_r, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, STAGES=cut.stages, SPLIT=cut.split,
            PACKED=_packed(weight), BIAS=weight.bias is not None, PRECISION=self._precision, EARLY=self._early,
            num_warps=cut.warps, num_stages=cut.stages, **launch_options(self._early),
        )  # fmt: skip
        return queries

    def add(self, x: torch.Tensor, weight: Linear, hidden: Hidden, then: Norm, tiling: Tiling) -> None:
        """Adds linear(x) to the residual stream, and readies it for the norm that reads it next."""
        assert hidden.squares is not None
        hidden.squares = hidden.squares[1:]
        if other := self._others.get(tiling.by):
            other.add(x, weight, hidden, then, _shares(tiling, weight))
        else:
            self._launch(x, weight, tiling, hidden.x, hidden, then, add=True)

    def _launch(
        self, x: torch.Tensor, weight: Linear, tiling: Tiling, out: torch.Tensor, hidden: Hidden, norm: Norm,
        gated: bool = False, add: bool = False,
    ) -> None:  # fmt: skip
        assert hidden.squares is not None
        rows, n = out.shape
        block_r = tiling.rows(rows)
        cut = _cut(tiling, weight, gated, block_r)
        row_tiles, n_tiles = triton.cdiv(rows, block_r), triton.cdiv(n, cut.block_n)
        share = cut.inputs_of_share(weight.inputs)
        shares = triton.cdiv(weight.inputs, share) if cut.in_turn else 1  # the last may be short, none is empty
        packed, data, x_in = _packed(weight), weight.data, x
        turned = cut.tma and cut.turned
        rows_tma = turned or (cut.tma and block_r >= _MIN_TMA_ROWS)
        if cut.tma:
            data = TensorDescriptor.from_tensor(data, [cut.block_n, cut.block_k // packed])
        if rows_tma:
            x_in = TensorDescriptor.from_tensor(x, [block_r, cut.block_k // packed])
        linear_kernel[(row_tiles, n_tiles, cut.programs)](
            x_in, data, norm.gain if weight.scale is None else weight.scale, hidden.squares,
            norm.gain if weight.bias is None else weight.bias, out, norm.gain, hidden.scaled, self._scratch,
            self._arrived, rows, n, weight.inputs, share, norm.eps,
            BLOCK_R=block_r, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, STAGES=cut.stages, SPLIT=cut.programs,
            SHARES=shares, PACKED=packed, NORM=not add, GATED=gated, BIAS=weight.bias is not None,
            ADD=add, TMA=cut.tma, ROWS_TMA=rows_tma, TURNED=turned, PRECISION=self._precision, EARLY=self._early,
            num_warps=cut.warps, num_stages=cut.stages, **launch_options(self._early),
        )  # fmt: skip


def _shares(tiling: Tiling, weight: Linear) -> Shares:
    return Shares(tiling.split, tiling.inputs_of_share(weight.inputs))


def _packed(weight: Linear) -> int:
    """Weights of an element."""
    return 1 if weight.scale is None else 2


def _cut(tiling: Tiling, weight: Linear, gated: bool, block_r: int) -> Tiling:
    cut = tiling.fitted(weight.inputs, weight.data.element_size(), gated, block_r)
    assert weight.scale is None or cut.block_k == tile_inputs(weight.inputs), "tiles are as they were packed"
    return cut
