"""HopperProducts: products of many rows by hopper_products.cu, compiled once per machine for each of their shapes."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass

import torch

from slipstream.backends.torch.cuda.kernels.nvrtc import HOPPER, Kernel, NvrtcError, TensorMap, cached_cubin, is_hopper
from slipstream.backends.torch.cuda.kernels.products import (
    COLUMNS,
    INT,
    KINDS,
    POINTER,
    Kind,
    Product,
    Products,
    takes_sizes,
)
from slipstream.backends.torch.ops import Linear
from slipstream.models.config import DecoderConfig

log = logging.getLogger("slipstream")

_ROWS, _THREADS = 128, 384  # of a tile; of a block
_MAX_ROW_TILES = 2  # of a cluster
_OUTPUTS = (64, 96, 128, 192, 224, 256)  # of a tile
_ROW_BYTES = COLUMNS * 2
_BESIDE_RING = 1024 + 256  # it begins at a multiple of 1024, and has its barriers behind it
_SHARED_BYTES = 232_448 - _BESIDE_RING
_MAX_STAGES = 8
_ALIGNED = 16  # outputs: eight of each half are brought at a time, and stored in pairs


class _CTiles(ctypes.Structure):
    """`struct Task` of hopper_products.cu."""

    _fields_ = [
        *((name, INT) for name in ("rows", "outputs", "inputs", "tiles", "row_groups", "share")),
        ("eps", ctypes.c_float),
        ("squares", POINTER),
        ("bias", POINTER),
    ]


@dataclass(frozen=True, slots=True)
class TileShape:
    """Outputs of a tile, and the blocks of a cluster: each has other rows or another part of the sum."""

    outputs: int
    row_tiles: int
    parts: int

    @property
    def blocks(self) -> int:
        """Of a cluster, one for each multiprocessor."""
        return self.row_tiles * self.parts

    @property
    def stage_bytes(self) -> int:
        return (self.outputs + _ROWS) * _ROW_BYTES

    @property
    def stages(self) -> int:
        """Of a ring."""
        return min(_SHARED_BYTES // self.stage_bytes, _MAX_STAGES)

    @property
    def merged_bytes(self) -> int:
        """Of the sums of all parts, of 64 rows, which meet where the ring was."""
        return self.parts * self.outputs * 64 * 4 if self.parts > 1 else 0

    def row_groups(self, rows: int) -> int:
        return -(-rows // (_ROWS * self.row_tiles))

    def tiles(self, outputs: int, rows: int) -> int:
        """Of a cluster each."""
        return -(-outputs // self.outputs) * self.row_groups(rows)

    def turns(self, outputs: int, rows: int, multiprocessors: int) -> int:
        """Tiles that a block has to take."""
        return -(-self.tiles(outputs, rows) * self.blocks // multiprocessors)


def tile_for(outputs: int, rows: int, parts: int, multiprocessors: int) -> TileShape:
    """That whose blocks, one turn after the other, have the least to bring: a multiprocessor waits for that longer than
    for its products. Clusters of two parts and two tiles of rows do not fit all at once: down of an 8B took 99 us.
    """
    row_tiles = min(-(-rows // _ROWS), _MAX_ROW_TILES) if parts == 1 else 1
    shapes = [TileShape(each, row_tiles, parts) for each in _OUTPUTS]
    shapes = [shape for shape in shapes if shape.merged_bytes <= shape.stages * shape.stage_bytes]
    return min(shapes, key=lambda shape: shape.turns(outputs, rows, multiprocessors) * shape.stage_bytes)


class HopperProducts(Products):
    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dtype)
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._kernels: dict[tuple[Kind, TileShape], Kernel] = {}
        self._maps: dict[tuple[int, torch.Size, bool, int], TensorMap] = {}

    @classmethod
    def for_model(cls, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> HopperProducts | None:
        """None where this GPU or the sizes of the model have no such kernels."""
        if not takes_sizes(config, dtype) or not is_hopper(device):
            return None
        products = cls(dtype, device)
        try:
            products._kernel("added", TileShape(64, 1, 1))
        except NvrtcError as error:
            log.warning("GPU kernels for many rows are not used, which costs 5 to 20 %% of their speed: %s", error)
            return None
        return products

    def takes(self, weight: Linear) -> bool:
        return weight.scale is None and weight.outputs % _ALIGNED == 0

    def _launch(self, product: Product) -> None:
        x, weight, squares = product.x, product.weight, product.hidden.squares
        assert x is not None and squares is not None
        assert product.kind != "qkv" and (weight.bias is None or product.kind != "gated"), "there are no such kernels"
        rows, parts = len(x), -(-weight.inputs // product.shares.inputs)
        shape, bias = tile_for(weight.outputs, rows, parts, self._multiprocessors), weight.bias
        tiles = shape.tiles(weight.outputs, rows)
        task = _CTiles(
            rows, product.outputs, weight.inputs, tiles, shape.row_groups(rows), product.shares.inputs,
            product.norm.eps, squares.data_ptr(), None if bias is None else bias.data_ptr(),
        )  # fmt: skip
        arguments = (
            self._map(weight.data, product.kind, shape), self._describe(x, _ROWS), task, product.residual,
            product.out, int(product.out.dtype == torch.float32),
        )  # fmt: skip
        turns = shape.turns(weight.outputs, rows, self._multiprocessors) if parts == 1 else 1  # parts meet in the ring
        grid, room = (shape.blocks, -(-tiles // turns)), shape.stages * shape.stage_bytes + _BESIDE_RING
        self._kernel(product.kind, shape).launch(grid, _THREADS, arguments, room, early=True, cluster=shape.blocks)

    def _map(self, weight: torch.Tensor, kind: Kind, shape: TileShape) -> TensorMap:
        brought = shape.outputs // shape.row_tiles  # by one block
        key = (weight.data_ptr(), weight.shape, kind == "gated", brought)
        if key not in self._maps:
            paired = kind == "gated"
            self._maps[key] = (
                self._describe_pairs(weight, brought // _ALIGNED) if paired else self._describe(weight, brought)
            )
        return self._maps[key]

    def _kernel(self, kind: Kind, shape: TileShape) -> Kernel:
        key = (kind, shape)
        if key not in self._kernels:
            cubin = cached_cubin("hopper_products", HOPPER, defines_of(kind, shape, self._dtype))
            self._kernels[key] = Kernel(cubin, "product")
        return self._kernels[key]


def defines_of(kind: Kind, shape: TileShape, dtype: torch.dtype) -> dict[str, int]:
    """For which a kernel is compiled."""
    shape_of = {"OUTPUTS": shape.outputs, "ROW_TILES": shape.row_tiles, "PARTS": shape.parts, "STAGES": shape.stages}
    return {"KIND": KINDS[kind], **shape_of, "FLOAT16": int(dtype == torch.float16)}
