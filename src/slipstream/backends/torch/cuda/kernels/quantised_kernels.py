"""QuantisedKernels: launches the kernels of quantised.cu, compiled once per machine for each layout of a model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from slipstream.backends.torch.cuda.kernels.early_start import can_start_early
from slipstream.backends.torch.cuda.kernels.nvrtc import Argument, Kernel, cached_cubin
from slipstream.backends.torch.cuda.kernels.quantised_layout import QUAD, TILE, CodedLinear, CodedPart, CodeLayout
from slipstream.backends.torch.ops import Norm

_ROWS_A_TILE = 8
_RECORD = 1408  # bytes of 8 rows and a quad, as quantised.cu has them
_THREADS = 256
_QUADS_A_BLOCK = 8
_ROW_TILES = (1, 2, 4, 8)  # of a block, as quantised.cu has kernels
_FULL_DEVICE = 3  # blocks for each multiprocessor; with fewer, a block gets one tile of outputs rather than two

Source = Literal["normed", "half", "gated", "plain"]
_SOURCES: dict[Source, int] = {"normed": 0, "half": 1, "gated": 2, "plain": 3}
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int


@dataclass(frozen=True, slots=True)
class CodedRows:
    """Activations as 8-bit codes, as the tensor cores read them."""

    rows: int
    records: torch.Tensor  # [tiles of 8 rows, quads, bytes] uint8
    apart: int  # places from a row to the next: up to 4 rows leave every other one free, which takes less work

    @classmethod
    def empty(cls, rows: int, inputs: int, device: torch.device) -> CodedRows:
        """Whole tiles for a launch: what is in rows that there are not does not matter."""
        apart = 2 if 2 * rows <= _ROWS_A_TILE else 1
        tiles = -(-rows // _ROWS_A_TILE)
        tiles = -(-tiles // row_tiles(tiles)) * row_tiles(tiles)
        return cls(rows, torch.empty(tiles, -(-inputs // QUAD), _RECORD, dtype=torch.uint8, device=device), apart)


def row_tiles(tiles: int) -> int:
    """Of a block of a launch for so many tiles of 8 rows."""
    return next((count for count in _ROW_TILES if tiles <= count), _ROW_TILES[-1])


class CodeKernels(Protocol):
    """What the decoder's steps need of kernels for quantised weights."""

    def quantise(self, x: torch.Tensor, source: Source, norm: Norm | None = None) -> CodedRows:
        """Rows as codes. normed: norm(x), x in float32; half: x in bf16; gated: silu(gate) * up of float32, gates
        first; plain: x in float32."""
        ...

    def multiply(self, rows: CodedRows, weight: CodedLinear, out: torch.Tensor, add: bool = False) -> None:
        """out[rows, outputs] = rows times weight; with `add` it is added to what out has, in float32."""
        ...

    def lookup(self, table: CodedPart, tokens: torch.Tensor) -> torch.Tensor:
        """[rows, inputs] float32, by ids in int32."""
        ...

    def unpack(self, part: CodedPart, first: int, out: torch.Tensor) -> None:
        """out[outputs, inputs] in bf16: the weights from output `first` on. `first` is a multiple of 16."""
        ...


class _CCodedPart(ctypes.Structure):
    """`struct Part` of quantised.cu."""

    _fields_ = [
        ("records", _POINTER),
        *((name, _INT) for name in ("tiles", "quads", "outputs")),
        ("offset", ctypes.c_float),
    ]


class _COutcome(ctypes.Structure):
    """`struct Outcome` of quantised.cu."""

    _fields_ = [("y", _POINTER), ("bias", _POINTER), *((name, _INT) for name in ("rows", "stride", "first", "kind"))]


class QuantisedKernels:
    """Results go to torch's current stream, so graphs capture them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._code: dict[CodeLayout | None, bytes] = {}
        self._kernels: dict[tuple[CodeLayout | None, str], Kernel] = {}
        self._early = can_start_early(device)
        self._enough_blocks = _FULL_DEVICE * torch.cuda.get_device_properties(device).multi_processor_count

    def quantise(self, x: torch.Tensor, source: Source, norm: Norm | None = None) -> CodedRows:
        inputs = x.shape[1] // (2 if source == "gated" else 1)
        rows = CodedRows.empty(len(x), inputs, self._device)
        quads, gain, eps = rows.records.shape[1], norm.gain if norm else x, norm.eps if norm else 0.0
        arguments = (x, gain, eps, inputs, quads, _SOURCES[source], rows.apart, rows.records)
        self._launch(None, "quantise_rows", (len(x), -(-quads // _QUADS_A_BLOCK)), arguments)
        return rows

    def multiply(self, rows: CodedRows, weight: CodedLinear, out: torch.Tensor, add: bool = False) -> None:
        kind, first, tiles = 2 if add else 1 if out.dtype == torch.float32 else 0, 0, len(rows.records)
        bias, n = None if weight.bias is None else weight.bias.data_ptr(), row_tiles(tiles)
        for part in weight.parts:
            m = 1 if n == 1 and part.num_tiles < 2 * self._enough_blocks else 2
            outcome = _COutcome(out.data_ptr(), bias, rows.rows, out.shape[1], first, kind)
            kernel, grid = f"product_{n}_{m}_{3 - rows.apart}", (-(-part.num_tiles // m), tiles // n)
            self._launch(part.layout, kernel, grid, (_c_part(part), rows.records, outcome))
            first += part.outputs

    def lookup(self, table: CodedPart, tokens: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(tokens), table.inputs, device=self._device)
        grid = (len(tokens), -(-table.inputs // _THREADS))
        self._launch(table.layout, "embed", grid, (_c_part(table), tokens, table.inputs, out))
        return out

    def unpack(self, part: CodedPart, first: int, out: torch.Tensor) -> None:
        grid = (-(-len(out) // TILE), -(-part.num_quads // _QUADS_A_BLOCK))
        self._launch(part.layout, "unpack", grid, (_c_part(part), first // TILE, part.inputs, out))

    def _launch(
        self, layout: CodeLayout | None, name: str, grid: tuple[int, int], arguments: Sequence[Argument]
    ) -> None:
        """A kernel of a layout, or one for activations. Compiled and loaded when it is first needed."""
        if (layout, name) not in self._kernels:
            if layout not in self._code:
                self._code[layout] = self._compiled(layout)
            self._kernels[layout, name] = Kernel(self._code[layout], name)
        self._kernels[layout, name].launch(grid, _THREADS, arguments, early=self._early)

    def _compiled(self, layout: CodeLayout | None) -> bytes:
        major, minor = torch.cuda.get_device_capability(self._device)
        return cached_cubin("quantised", f"sm_{major}{minor}", layout.defines if layout else {})


def _c_part(part: CodedPart) -> _CCodedPart:
    return _CCodedPart(part.records.data_ptr(), part.num_tiles, part.num_quads, part.outputs, part.offset)
