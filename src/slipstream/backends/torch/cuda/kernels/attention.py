"""Attention over the pages of the KV pool: rotary embedding and cache write, then the rows against what they see.

Rows are grouped into tiles that share their keys. The keys of a tile are cut into chunks. Where there are many tiles,
one program takes all chunks of a tile; elsewhere programs take chunks in turn, and the last program of a tile to finish
merges them. Cost grows with the tokens used, not with the pool, and a graph captured once serves every length.

Where a chunk begins depends on a row's own position alone, a key at position p always stands in column p of its block,
and chunks merge in their order by one formula, so a row's result is bit-identical regardless of the other rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream.backends.torch import coded_cache
from slipstream.backends.torch.coded_cache import is_coded
from slipstream.backends.torch.cuda.batch import (
    MAX_CHUNKS_BYTES,
    SPLIT,
    TILE_BASE,
    TILE_CHUNK,
    TILE_PAGE_FROM,
    TILE_POSITION,
    TILE_PROGRAMS,
    TILE_ROW,
    TILE_ROWS,
    TILE_SCRATCH,
    TILE_SIZE,
    TILE_TAIL_FROM,
    DeviceRows,
)
from slipstream.backends.torch.cuda.kernels.early_start import (
    can_start_early,
    launch_options,
    start_next_kernel,
    wait_for_last_kernel,
)
from slipstream.backends.torch.cuda.kernels.linear import finite_value, rotated
from slipstream.backends.torch.cuda.kernels.prompt_attention import PromptAttention
from slipstream.backends.torch.kv_pool import PAGE_SIZE
from slipstream.backends.torch.ops import LayerCache, QKNorm, RopeTable
from slipstream.models.config import DecoderConfig

_BLOCK_KEYS = 128
_HEADS_A_PROGRAM = 8
_LOG2_E = tl.constexpr(1.4426950408889634)
_ROUNDING = tl.constexpr(12582912.0)  # 1.5 * 2^23: added and taken away, a small number is rounded to a whole one
TOGETHER = tl.constexpr(coded_cache.TOGETHER)


@triton.jit
def store_half(
    vectors,  # [heads, 1] pointers to vectors of a cache
    x,  # [heads, half of a vector]
    first: tl.constexpr,  # the number of the vector that the half begins with
    mask,
    D: tl.constexpr,
    CODED: tl.constexpr,  # as `coded_cache` has vectors
):
    heads: tl.constexpr = x.shape[0]
    half: tl.constexpr = x.shape[1]
    at = vectors + first + tl.arange(0, half)[None, :]
    if CODED:
        groups = tl.reshape(x.to(tl.float32), [heads, half // TOGETHER, TOGETHER])
        top = tl.max(tl.abs(groups), 2)
        poison = tl.sum(groups * 0.0, 2)  # NaN if one of them is not finite
        inverse = tl.where((top > 0) & (poison == 0.0), 127.0 / tl.where(top > 0, top, 1.0), 0.0)[:, :, None]
        codes = tl.where(inverse > 0, groups * inverse + _ROUNDING - _ROUNDING, 0.0)
        tl.store(at, tl.reshape(codes, [heads, half]).to(tl.int8), mask)
        group = tl.arange(0, half // TOGETHER)[None, :]
        scale_at = (vectors + D).to(tl.pointer_type(tl.float32), bitcast=True) + first // TOGETHER + group
        tl.store(scale_at, top / 127.0 + poison, (tl.max(mask.to(tl.int32), 1) > 0)[:, None] & (group >= 0))
    else:
        tl.store(at, x.to(vectors.dtype.element_ty), mask)


@triton.jit
def load_cached(
    pool,  # a cache
    at,  # where vectors begin in it
    d,  # which of their numbers
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CODED: tl.constexpr,
):
    if CODED:
        scale_at = (pool + at + D).to(tl.pointer_type(tl.float32), bitcast=True) + d // TOGETHER
        found = tl.load(pool + at + d).to(tl.float32) * tl.load(scale_at)
    elif D == BLOCK_D:
        found = tl.load(pool + at + d)
    else:
        found = tl.load(pool + at + d, mask=d < D, other=0.0)
    return found


@triton.jit
def rope_write_kernel(
    qkv,  # [rows, (heads + 2 kv_heads) * D], queries and keys are rotated in place
    position,  # [rows] int32, rotary
    slot,  # [rows] int32, where in its sequence a row is kept
    page_from,  # [rows] int32, where its sequence's pages begin in `pages`
    pages,  # int32
    cosine,  # [context, D / 2] float32
    sine,
    q_gain,  # [D] float32
    k_gain,
    keys,  # [cells, kv_heads, WIDTH]
    values,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    CODED: tl.constexpr,
    HALF: tl.constexpr,  # of D, as a power of two
    PAGE: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, HALF)
    inside = (head < HEADS + 2 * KV_HEADS)[:, None] & (d < D // 2)[None, :]
    at = qkv + row.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * D) + head[:, None] * D + d[None, :]
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + D // 2, mask=inside, other=0.0).to(tl.float32)
    is_value = (head >= HEADS + KV_HEADS)[:, None]
    if NORM:
        scale = tl.rsqrt(tl.sum(a * a + b * b, 1) / D + eps)[:, None]
        is_query = (head < HEADS)[:, None]
        in_d = d < D // 2
        low = tl.where(is_query, tl.load(q_gain + d, mask=in_d)[None, :], tl.load(k_gain + d, mask=in_d)[None, :])
        high = tl.where(
            is_query,
            tl.load(q_gain + D // 2 + d, mask=in_d)[None, :],
            tl.load(k_gain + D // 2 + d, mask=in_d)[None, :],
        )
        dtype = qkv.dtype.element_ty
        a = tl.where(is_value, a, (a * scale * low).to(dtype).to(tl.float32))
        b = tl.where(is_value, b, (b * scale * high).to(dtype).to(tl.float32))
    angle = tl.load(position + row).to(tl.int64) * (D // 2) + d
    c = tl.load(cosine + angle, mask=d < D // 2, other=0.0)[None, :]
    s = tl.load(sine + angle, mask=d < D // 2, other=0.0)[None, :]
    low_out = tl.where(is_value, a, rotated(a, -b, c, s))
    high_out = tl.where(is_value, b, rotated(b, a, c, s))
    is_query = inside & (head < HEADS)[:, None]
    tl.store(at, low_out.to(qkv.dtype.element_ty), mask=is_query)
    tl.store(at + D // 2, high_out.to(qkv.dtype.element_ty), mask=is_query)

    place = tl.load(slot + row)
    cell = tl.load(pages + tl.load(page_from + row) + place // PAGE).to(tl.int64) * PAGE + place % PAGE
    is_key = inside & ((head >= HEADS) & (head < HEADS + KV_HEADS))[:, None]
    number = cell * KV_HEADS + head[:, None] - HEADS
    key_at = keys + number * WIDTH
    store_half(key_at, low_out, 0, is_key, D, CODED)
    store_half(key_at, high_out, D // 2, is_key, D, CODED)
    value_at = values + (number - KV_HEADS) * WIDTH
    store_half(value_at, finite_value(low_out.to(qkv.dtype.element_ty)), 0, inside & is_value, D, CODED)
    store_half(value_at, finite_value(high_out.to(qkv.dtype.element_ty)), D // 2, inside & is_value, D, CODED)


@triton.jit
def with_chunk(peak, weight, total, next_peak, next_weight, next_total):
    """The sums over some chunks with those of the next. Rounded in the same places wherever it is computed."""
    highest = tl.maximum(peak, next_peak)
    safe = tl.where(highest == float("-inf"), 0.0, highest)
    before, now = tl.exp2(peak - safe), tl.exp2(next_peak - safe)
    return (
        highest,
        tl.fma(weight, before, next_weight * now),
        tl.fma(total, tl.broadcast_to(before[:, None], total.shape), next_total * now[:, None]),
    )


@triton.jit
def attend_kernel(
    queries,  # [rows, query_stride]
    keys,  # [cells, kv_heads, WIDTH]
    values,
    out,  # [rows, heads * D]
    tiles,  # [tiles, TILE_SIZE] int32, as TILE_FIELDS has them; together, so that one wait brings them all
    program_tiles,  # [programs] int32: the tile of each, and which share of it (see SPLIT)
    tail,  # int32: slots of a branch, by position
    pages,  # int32
    scratch,  # [queries of all chunks, D] float32: those of a tile chunk by chunk, and in it by key head
    peaks,  # [queries of all chunks, 2] float32: largest score, sum of weights
    arrived,  # [tiles, kv_heads] int32, zero before and after
    query_stride,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    CODED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    start_next_kernel(EARLY)  # at once: there are few programs, and the next product may ask for its weights meanwhile
    kv_head = tl.program_id(0)  # those of a tile run side by side: their keys are neighbours in memory
    entry = tl.load(program_tiles + tl.program_id(1))
    if entry < 0:
        if tl.program_id(1) == 0:  # none has something to do: the next kernel still comes after the one before
            wait_for_last_kernel(EARLY)
        return
    tile = entry % SPLIT
    split = entry // SPLIT
    first_row = tl.load(tiles + tile * TILE_SIZE + TILE_ROW)
    num_rows = tl.load(tiles + tile * TILE_SIZE + TILE_ROWS)  # 0 where there is no tile
    first_position = tl.load(tiles + tile * TILE_SIZE + TILE_POSITION)
    base = tl.load(tiles + tile * TILE_SIZE + TILE_BASE)  # positions from here on are looked up in `tail`
    tail_from = tl.load(tiles + tile * TILE_SIZE + TILE_TAIL_FROM)
    chunk = tl.load(tiles + tile * TILE_SIZE + TILE_CHUNK)  # keys of a chunk
    chunk_at = tl.load(tiles + tile * TILE_SIZE + TILE_SCRATCH)  # rows of chunks that stand before it in scratch
    pages_at = pages + tl.load(tiles + tile * TILE_SIZE + TILE_PAGE_FROM)
    programs = tl.load(tiles + tile * TILE_SIZE + TILE_PROGRAMS)
    last = first_position + num_rows - 1
    first_chunk = 0
    if WINDOW > 0:
        first_chunk = tl.maximum(first_position - WINDOW + 1, 0) // chunk
    num_chunks = last // chunk + 1 - first_chunk
    programs = tl.minimum(programs, num_chunks)
    if (num_rows == 0) | (split >= programs):
        return

    wait_for_last_kernel(EARLY)  # the rows above were laid out before the forward began
    column = tl.arange(0, BLOCK_KEYS)
    tail_at = tail + tail_from - base
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    row = first_row + m // GROUP
    head = kv_head * GROUP + m % GROUP
    is_query = m < num_rows * GROUP
    in_d = d < D
    wanted = is_query[:, None] & in_d[None, :] if D != BLOCK_D else is_query[:, None]
    own = tl.where(is_query, first_position + m // GROUP, -1)
    q_at = queries + row[:, None].to(tl.int64) * query_stride + head[:, None] * D + d[None, :]
    q = tl.load(q_at, mask=wanted, other=0.0)

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    stretch = tl.where(programs == 1, num_chunks, 1) * chunk  # keys between two stores
    for c in range(split, tl.where(programs == 1, 1, num_chunks), programs):
        merged_peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
        merged_weight = tl.zeros([BLOCK_M], tl.float32)
        merged = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        begin = (first_chunk + c) * chunk
        for start in tl.range(begin, tl.minimum(begin + stretch, last + 1), BLOCK_KEYS):
            p = start + column
            place = tl.minimum(p, last)  # beyond it nothing is seen: other streams' pages are not read
            place = tl.where(place >= base, tl.load(tail_at + place, mask=place >= base, other=0), place)
            page = tl.load(pages_at + place // PAGE).to(tl.int64)
            at = ((page * PAGE + place % PAGE) * KV_HEADS + kv_head) * WIDTH
            k = load_cached(keys, at[None, :], d[:, None], D, BLOCK_D, CODED).to(q.dtype)
            v = load_cached(values, at[:, None], d[None, :], D, BLOCK_D, CODED).to(q.dtype)
            score = tl.dot(q, k, input_precision=PRECISION) * (scale * _LOG2_E)
            seen = p[None, :] <= own[:, None]
            if WINDOW > 0:
                seen = seen & (p[None, :] > own[:, None] - WINDOW)
            score = tl.where(seen, score, float("-inf"))
            is_first = start % chunk == 0
            peak = tl.where(is_first, float("-inf"), peak)
            new_peak = tl.maximum(peak, tl.max(score, 1))
            safe = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            shrink = tl.exp2(peak - safe)
            part = tl.exp2(score - safe[:, None])
            weight = tl.fma(tl.where(is_first, 0.0, weight), shrink, tl.sum(part, 1))
            total = tl.where(is_first, 0.0, total) * shrink[:, None]
            total = tl.dot(part.to(v.dtype), v, total, input_precision=PRECISION)
            peak = new_peak
            with_it = with_chunk(merged_peak, merged_weight, merged, peak, weight, total)
            ends = ((start + BLOCK_KEYS) % chunk == 0) | (start + BLOCK_KEYS > last)
            merged_peak = tl.where(ends, with_it[0], merged_peak)
            merged_weight = tl.where(ends, with_it[1], merged_weight)
            merged = tl.where(ends, with_it[2], merged)
        if programs == 1:
            # not computed before the loop: it would take registers, and fewer programs would run side by side
            out_at = out + row[:, None].to(tl.int64) * (HEADS * D) + head[:, None] * D + d[None, :]
            whole = merged / tl.where(is_query, merged_weight, 1.0)[:, None]
            tl.store(out_at, whole.to(out.dtype.element_ty), mask=wanted)
        else:
            place_out = (chunk_at + c * num_rows) * HEADS + kv_head * num_rows * GROUP + m
            tl.store(scratch + place_out[:, None] * D + d[None, :], merged, mask=wanted)
            tl.store(peaks + place_out * 2, merged_peak, mask=is_query)
            tl.store(peaks + place_out * 2 + 1, merged_weight, mask=is_query)
    if programs == 1:
        return

    tl.debug_barrier()
    if tl.atomic_add(arrived + tile * KV_HEADS + kv_head, 1, sem="acq_rel") != programs - 1:
        return
    tl.store(arrived + tile * KV_HEADS + kv_head, 0)
    begin = chunk_at * HEADS + kv_head * num_rows * GROUP + m
    step = num_rows * HEADS
    peaks_at = peaks + begin * 2
    scratch_at = scratch + begin[:, None] * D + d[None, :]
    merged_peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    merged_weight = tl.zeros([BLOCK_M], tl.float32)
    merged = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for c in tl.range(0, num_chunks, num_stages=3):
        peak = tl.load(peaks_at + c * 2 * step, mask=is_query, other=float("-inf"), cache_modifier=".cg")
        weight = tl.load(peaks_at + c * 2 * step + 1, mask=is_query, other=0.0, cache_modifier=".cg")
        total = tl.load(scratch_at + c * step * D, mask=wanted, other=0.0, cache_modifier=".cg")
        merged_peak, merged_weight, merged = with_chunk(merged_peak, merged_weight, merged, peak, weight, total)
    out_at = out + row[:, None].to(tl.int64) * (HEADS * D) + head[:, None] * D + d[None, :]
    whole = merged / tl.where(is_query, merged_weight, 1.0)[:, None]
    tl.store(out_at, whole.to(out.dtype.element_ty), mask=wanted)


class PagedAttention:
    """Launches the kernels above, with the scratch they share."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, max_tiles: int) -> None:
        """Scratch has its final size from the start: captured graphs keep its address."""
        self._config = config
        self._scratch = torch.empty(MAX_CHUNKS_BYTES // 4, device=device)
        self._peaks = torch.empty(MAX_CHUNKS_BYTES // 4 * 2 // config.head_dim, device=device)
        self._arrived = torch.zeros(max_tiles * config.num_kv_heads, dtype=torch.int32, device=device)
        self._precision = "ieee" if dtype == torch.float32 else "tf32"
        self._early = can_start_early(device)
        self._prompts = PromptAttention(config, dtype, device)

    @property
    def rows_a_block(self) -> int:
        """Of a prompt."""
        return self._prompts.rows_a_block

    def rope_write(
        self, qkv: torch.Tensor, batch: DeviceRows, rope: RopeTable, norm: QKNorm | None, cache: LayerCache
    ) -> None:
        config = self._config
        heads = config.num_heads + 2 * config.num_kv_heads
        rope_write_kernel[(len(qkv), triton.cdiv(heads, _HEADS_A_PROGRAM))](
            qkv, batch.position, batch.slot, batch.page_from, batch.pages, rope.cosine, rope.sine,
            norm.query if norm else rope.cosine, norm.key if norm else rope.cosine, cache.keys, cache.values,
            config.norm_eps, HEADS=config.num_heads, KV_HEADS=config.num_kv_heads, D=config.head_dim,
            WIDTH=cache.keys.shape[-1], CODED=is_coded(cache.keys),
            HALF=triton.next_power_of_2(config.head_dim // 2), PAGE=PAGE_SIZE, NORM=norm is not None,
            BLOCK_H=_HEADS_A_PROGRAM, num_warps=4,
        )  # fmt: skip

    def attend(self, queries: torch.Tensor, batch: DeviceRows, cache: LayerCache) -> torch.Tensor:
        """`queries` may have keys and values behind them in each row."""
        config = self._config
        out = torch.empty(len(queries), config.num_heads * config.head_dim, dtype=queries.dtype, device=queries.device)
        if batch.blocks:
            self._prompts.attend(queries, batch.blocks, cache, out)
        if not batch.num_tiles:
            return out
        attend_kernel[(config.num_kv_heads, len(batch.programs))](
            queries, cache.keys, cache.values, out, batch.tiles, batch.programs, batch.tail, batch.pages,
            self._scratch, self._peaks, self._arrived, queries.shape[1], config.head_dim**-0.5, HEADS=config.num_heads,
            KV_HEADS=config.num_kv_heads, GROUP=config.num_heads // config.num_kv_heads, D=config.head_dim,
            WIDTH=cache.keys.shape[-1], CODED=is_coded(cache.keys),
            BLOCK_D=triton.next_power_of_2(config.head_dim), BLOCK_M=batch.block_m, BLOCK_KEYS=_BLOCK_KEYS,
            PAGE=PAGE_SIZE, WINDOW=config.sliding_window or 0, PRECISION=self._precision,
            EARLY=self._early, num_warps=4, num_stages=2, **launch_options(self._early),
        )  # fmt: skip
        return out
