"""StreamedProducts: launches the kernels of streamed.cu, compiled once per machine for each shape of a launch."""

from __future__ import annotations

import ctypes
import logging

import torch

from slipstream.backends.torch.cuda.kernels.early_start import can_start_early
from slipstream.backends.torch.cuda.kernels.nvrtc import Kernel, NvrtcError, TensorMap, cached_cubin, is_hopper
from slipstream.backends.torch.cuda.kernels.products import (
    COLUMNS,
    INT,
    KINDS,
    POINTER,
    Kind,
    Product,
    Products,
    Shares,
    takes_sizes,
)
from slipstream.models.config import DecoderConfig

log = logging.getLogger("slipstream")

_TILE = 16  # outputs of a warp, in two groups
_GROUP = 8  # outputs, or rows
_ITEM_BYTES = 2
_MAX_WARPS = 15  # of a block that multiply; one more asks for boxes
_MAX_STAGES = 8  # as streamed.cu has barriers
# A block asks for nearly all that a multiprocessor has, so that it is alone there: with room for a second, some got two
# and some none (a step of an 8B took 4.5 to 5.5 ms with rings of half the size or less, 4.0 with these).
_RING_BYTES = 208 * 1024
_DEPTHS = (1, 2, 4)  # boxes of a stage, one after another: 8 were no faster
_ENOUGH_STAGES = 4  # gate-up of an 8B took 59.8 us with 3 stages, 57.2 with 7


def can_stream(device: torch.device) -> bool:
    """On the GPUs for which the sizes above were measured. Newer ones have the instructions too."""
    return can_start_early(device) and is_hopper(device)


class _CTask(ctypes.Structure):
    """`struct Task` of streamed.cu."""

    _fields_ = [
        *((name, INT) for name in ("rows", "outputs", "inputs", "tiles_a_block", "parts", "share", "stages")),
        ("eps", ctypes.c_float),
        ("squares", POINTER),
        ("bias", POINTER),
    ]


class StreamedProducts(Products):
    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dtype)
        self._device = device
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._kernels: dict[tuple[Kind, int, int], Kernel] = {}
        self._maps: dict[tuple[int, torch.Size, int, int], TensorMap] = {}

    @classmethod
    def for_model(cls, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> StreamedProducts | None:
        """None where this GPU or the sizes of the model have no such kernels."""
        if config.head_dim % _TILE or not takes_sizes(config, dtype) or not can_stream(device):
            return None
        products = cls(dtype, device)
        try:
            products._kernel("added", 1, _DEPTHS[0])
            products._describe(torch.empty(_TILE, 2 * COLUMNS, dtype=dtype, device=device), _GROUP, _DEPTHS[0])
        except NvrtcError as error:
            log.warning("GPU kernels that stream weights are not used, which costs 3 to 12 %% of speed: %s", error)
            return None
        return products

    def _launch(self, product: Product) -> None:
        x, weight, shares, out = product.x, product.weight, product.shares, product.out
        squares, bias = product.hidden.squares, weight.bias
        assert x is not None and squares is not None
        row_tiles = -(-len(x) // _GROUP)
        each, depth, stages = self._cut(weight.outputs // _TILE, shares, row_tiles)
        task = _CTask(
            len(x), product.outputs, weight.inputs, each, shares.count,
            shares.inputs, stages, product.norm.eps, squares.data_ptr(), None if bias is None else bias.data_ptr(),
        )  # fmt: skip
        arguments = (
            self._map(weight.data, _GROUP * (1 if product.kind == "qkv" else each), depth),
            self._describe(x, _GROUP * row_tiles, depth),
            task, product.place, product.residual, out, int(out.dtype == torch.float32),
        )  # fmt: skip
        blocks, threads = -(-weight.outputs // (_TILE * each)), 32 * (each * shares.count + 1)
        room = _RING_BYTES + 1024  # the ring begins at a multiple of 1024
        self._kernel(product.kind, row_tiles, depth).launch((blocks,), threads, arguments, room, early=True)

    def _cut(self, tiles: int, shares: Shares, row_tiles: int) -> tuple[int, int, int]:
        """Tiles of a block, boxes of a stage one after another, and stages: as few blocks one after another as can be,
        as many boxes on their way, and stages that are soon there.
        """
        waves = -(-tiles * shares.count // (self._multiprocessors * _MAX_WARPS))
        each = max(min(-(-tiles // (self._multiprocessors * waves)), _MAX_WARPS // shares.count), 1)
        most, cut = 0, (1, 1)
        for depth in _DEPTHS:
            stages = min(_RING_BYTES // _stage_bytes(each, shares.count, row_tiles, depth), _MAX_STAGES)
            on_their_way = min(stages * depth, shares.inputs // COLUMNS)
            if on_their_way > most and (stages >= _ENOUGH_STAGES or depth == 1):
                most, cut = on_their_way, (depth, stages)
        return each, *cut

    def _map(self, weight: torch.Tensor, lines: int, depth: int) -> TensorMap:
        key = (weight.data_ptr(), weight.shape, lines, depth)
        if key not in self._maps:
            self._maps[key] = self._describe(weight, lines, depth)
        return self._maps[key]

    def _kernel(self, kind: Kind, row_tiles: int, depth: int) -> Kernel:
        key = (kind, row_tiles, depth)
        if key not in self._kernels:
            major, minor = torch.cuda.get_device_capability(self._device)
            cubin = cached_cubin("streamed", f"sm_{major}{minor}", defines_of(kind, row_tiles, depth, self._dtype))
            self._kernels[key] = Kernel(cubin, "product")
        return self._kernels[key]


def defines_of(kind: Kind, row_tiles: int, depth: int, dtype: torch.dtype) -> dict[str, int]:
    """For which a kernel is compiled."""
    half = int(dtype == torch.float16)
    return {"KIND": KINDS[kind], "ROW_TILES": row_tiles, "DEPTH": depth, "FLOAT16": half}


def _stage_bytes(tiles: int, parts: int, row_tiles: int, depth: int) -> int:
    return parts * (2 * tiles + row_tiles) * depth * _GROUP * COLUMNS * _ITEM_BYTES
