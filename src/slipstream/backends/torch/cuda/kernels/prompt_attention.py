"""Attention for long queries: a prompt's rows over its sequence, at the speed of the tensor cores.

A block is up to BLOCK_M rows: neighbouring positions of one sequence, and for each of them the heads that share a key
head. It reads all keys that its rows see, and its result does not depend on other blocks. Pages are first copied into
one piece, which takes a hundredth of the time: the tensor memory accelerator then brings tiles of any size. On Hopper,
the common shapes have a faster kernel (`hopper_attention.cu`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from slipstream.backends.torch.coded_cache import decoded
from slipstream.backends.torch.cuda.kernels.hopper_attention import HopperAttention
from slipstream.backends.torch.kv_pool import PAGE_SIZE
from slipstream.backends.torch.ops import LayerCache
from slipstream.models.config import DecoderConfig

BLOCK_FIELDS = ("row", "rows", "position", "key_from")
BLOCK_SIZE = tl.constexpr(len(BLOCK_FIELDS))
_LOG2_E = 1.4426950408889634


@triton.jit
def prompt_attend_kernel(
    queries,  # [rows, query_stride]
    keys,  # [keys, kv_heads * BLOCK_D]: a pointer, or with TMA a descriptor
    values,
    out,  # [rows, heads * D]
    blocks,  # [blocks, BLOCK_SIZE] int32, as BLOCK_FIELDS has them
    query_stride,
    scale,  # of the scores, for powers of two
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    TMA: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):
    block = blocks + tl.program_id(0) * BLOCK_SIZE
    kv_head = tl.program_id(1)
    first_row = tl.load(block)
    num_rows = tl.load(block + 1)
    first = tl.load(block + 2)
    key_from = tl.load(block + 3)
    last = first + num_rows - 1
    if num_rows == 0:  # of the room that a graph has
        return

    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    row = (first_row + m // GROUP).to(tl.int64)
    head = kv_head * GROUP + m % GROUP
    is_query = m < num_rows * GROUP
    wanted = is_query[:, None] & (d < D)[None, :]
    own = tl.where(is_query, first + m // GROUP, -1)
    q = tl.load(queries + row[:, None] * query_stride + head[:, None] * D + d[None, :], mask=wanted, other=0.0)

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    column = tl.arange(0, BLOCK_KEYS)
    since = own - (WINDOW if WINDOW > 0 else 1 << 30)  # keys up to here are not seen
    oldest = 0
    common = (first + 1) // BLOCK_KEYS * BLOCK_KEYS  # keys before it are seen by all rows
    if WINDOW > 0:
        oldest = tl.maximum(first - WINDOW + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
        common = oldest
    for masked in tl.static_range(2):  # the keys that all rows see, then those around the diagonal
        begin = common if masked else oldest
        end = last + 1 if masked else common
        for start in tl.range(begin, end, BLOCK_KEYS, num_stages=STAGES):
            p = start + column
            at = (key_from + tl.minimum(p, last)).to(tl.int64) * (KV_HEADS * BLOCK_D) + kv_head * BLOCK_D
            k = keys.load([key_from + start, kv_head * BLOCK_D]).T if TMA else tl.load(keys + at[None, :] + d[:, None])
            score = tl.dot(q, k, input_precision=PRECISION)
            if masked:
                seen = (p[None, :] <= own[:, None]) & (p[None, :] > since[:, None])
                score = tl.where(seen, score, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(score, 1) * scale)
            safe = tl.where(new_peak == float("-inf"), 0.0, new_peak) if masked else new_peak
            shrink = tl.exp2(peak - safe)
            part = tl.exp2(score * scale - safe[:, None])
            weight = weight * shrink + tl.sum(part, 1)
            total = total * shrink[:, None]
            v = (
                values.load([key_from + start, kv_head * BLOCK_D])
                if TMA
                else tl.load(values + at[:, None] + d[None, :])
            )
            total = tl.dot(part.to(v.dtype), v, total, input_precision=PRECISION)
            peak = new_peak
    total = total / tl.where(is_query, weight, 1.0)[:, None]
    tl.store(out + row[:, None] * (HEADS * D) + head[:, None] * D + d[None, :], total.to(out.dtype.element_ty), wanted)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """How a block is cut: its queries, the keys of a step, and the threads and buffers for them."""

    block_m: int
    block_keys: int
    warps: int
    stages: int


def block_shape(config: DecoderConfig, dtype: torch.dtype) -> BlockShape:
    """The fastest on an H200 at 2,048 to 16,384 rows of an 8B shape; elsewhere what fits in shared memory."""
    row_bytes = triton.next_power_of_2(config.head_dim) * dtype.itemsize
    least = triton.next_power_of_2(config.num_heads // config.num_kv_heads)
    if row_bytes <= 256:
        return BlockShape(max(64, least), 64, 4, 3)
    return BlockShape(max(64, least), 32, 4, 2) if row_bytes <= 512 else BlockShape(max(32, least), 16, 4, 1)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a forward."""

    fields: torch.Tensor  # [blocks * BLOCK_SIZE] int32, as BLOCK_FIELDS
    pages: torch.Tensor  # int32, begins with those that they read
    num_pages: int


class PromptAttention:
    """Launches the kernels above."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config
        self._shape = block_shape(config, dtype)
        self._width = triton.next_power_of_2(config.head_dim)
        self._precision = "ieee" if dtype == torch.float32 else "tf32"
        self._hopper = HopperAttention.for_model(config, dtype, device)
        is_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
        self._has_tma = is_hopper and dtype.itemsize == 2
        self._dtype = dtype

    @property
    def rows_a_block(self) -> int:
        """Neighbouring positions."""
        group = self._config.num_heads // self._config.num_kv_heads
        return self._hopper.rows_a_block if self._hopper else self._shape.block_m // group

    def attend(self, queries: torch.Tensor, blocks: Blocks, cache: LayerCache, out: torch.Tensor) -> None:
        config, shape = self._config, self._shape
        keys, values = self._gathered(cache.keys, blocks), self._gathered(cache.values, blocks)
        if self._hopper:
            self._hopper.attend(queries, keys, values, blocks.fields, out)
            return
        prompt_attend_kernel[(len(blocks.fields) // len(BLOCK_FIELDS), config.num_kv_heads)](
            queries, self._tiled(keys), self._tiled(values), out, blocks.fields, queries.shape[1],
            config.head_dim**-0.5 * _LOG2_E,
            HEADS=config.num_heads, KV_HEADS=config.num_kv_heads, GROUP=config.num_heads // config.num_kv_heads,
            D=config.head_dim, BLOCK_D=self._width, BLOCK_M=shape.block_m, BLOCK_KEYS=shape.block_keys,
            WINDOW=config.sliding_window or 0, TMA=self._has_tma, PRECISION=self._precision, STAGES=shape.stages,
            num_warps=shape.warps, num_stages=shape.stages,
        )  # fmt: skip

    def _gathered(self, pool: torch.Tensor, blocks: Blocks) -> torch.Tensor:
        """Keys or values of the sequences in one piece [keys, kv_heads * BLOCK_D]."""
        heads, d, pages = self._config.num_kv_heads, self._config.head_dim, blocks.pages[: blocks.num_pages]
        own = pool.view(-1, PAGE_SIZE * heads * pool.shape[-1]).index_select(0, pages)
        own = decoded(own.view(-1, heads, pool.shape[-1]), d).to(self._dtype)
        if d != self._width:
            own = F.pad(own.view(-1, d), (0, self._width - d))
        return own.view(-1, heads * self._width)

    def _tiled(self, gathered: torch.Tensor) -> torch.Tensor | TensorDescriptor:
        if not self._has_tma:
            return gathered
        return TensorDescriptor.from_tensor(gathered, [self._shape.block_keys, self._width])
