"""NativeLinear: weights as the C kernels read them, packed once. Floats, or a file's own quantised codes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from slipstream.backends.torch.ops import Linear
from slipstream.models.quantised import GROUP, QuantFormat, QuantisedRows, QuantisedTensor

BLOCK = 16  # outputs of a block of floats, as in kernels.c
FLOATS = (torch.float32, torch.bfloat16, torch.float16)  # layouts 0, 1 and 2
# The other layouts, in the order of `quants` in quantised.c: bits, scale, inputs of a group, minimum.
LAYOUTS = (
    (4, "half", 32, "offset"),
    (4, "half", 32, "stored"),
    (4, "bytes", 32, "stored"),
    (4, "bytes", 16, "stored"),
    (4, "bytes", 16, "offset"),
    (8, "half", 32, "none"),
    (8, "half", 32, "stored"),
    (8, "bytes", 32, "none"),
    (8, "bytes", 32, "stored"),
    (8, "bytes", 16, "none"),
)
_FOUR_BITS, _EIGHT_BITS = (
    len(FLOATS) + LAYOUTS.index(of) for of in ((4, "half", 32, "offset"), (8, "half", 32, "none"))
)
_CHUNK_WEIGHTS = 1 << 18  # packed at once by a thread: temporary arrays fit into the cache, and are freed soon
_THREADS = min(8, os.cpu_count() or 1)


class _CPart(ctypes.Structure):
    """`struct part` of quantised.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "minimums", "supers", "super_minimums")),
        *((name, ctypes.c_int64) for name in ("first", "outputs", "super")),
        ("offset", ctypes.c_float),
        ("layout", ctypes.c_int32),
    ]


class _CLinear(ctypes.Structure):
    """`struct linear` of layer.c."""

    _fields_ = [
        ("parts", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_parts", "inputs", "outputs")),
        ("bias", ctypes.c_void_p),
        ("is_quantised", ctypes.c_int32),
    ]


@dataclass(frozen=True, slots=True)
class NativePart:
    """Some outputs of a product, all stored alike. The first index of each tensor is that of blocks or tiles."""

    layout: int
    outputs: int
    codes: torch.Tensor  # floats [blocks, inputs, 16], or codes [tiles, groups, bytes] uint8
    scales: torch.Tensor | None = None  # [tiles, groups, tile] float16 or int8
    minimums: torch.Tensor | None = None
    supers: torch.Tensor | None = None  # [tiles, supers, tile] float32
    super_minimums: torch.Tensor | None = None
    super_groups: int = 0  # groups of 32 inputs that share a float of `supers`
    offset: float = 0

    @property
    def is_quantised(self) -> bool:
        return self.scales is not None

    def tensors(self) -> Iterator[torch.Tensor]:
        for tensor in (self.codes, self.scales, self.minimums, self.supers, self.super_minimums):
            if tensor is not None:
                yield tensor

    def first_outputs(self, count: int) -> NativePart:
        """Shares the memory. `count` is a multiple of 16."""
        keep = count // (BLOCK if self.scales is None else self.scales.shape[-1])

        def cut(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor[:keep]

        return replace(
            self, outputs=count, codes=self.codes[:keep], scales=cut(self.scales), minimums=cut(self.minimums),
            supers=cut(self.supers), super_minimums=cut(self.super_minimums),
        )  # fmt: skip


class NativeLinear(Linear):
    """Parts side by side, and their description in C."""

    __slots__ = ("_c_linear", "_c_parts", "address", "parts")

    def __init__(self, parts: Sequence[NativePart], inputs: int, bias: torch.Tensor | None) -> None:
        outputs = sum(part.outputs for part in parts)
        Linear.__init__(self, parts[0].codes, outputs, inputs, bias)
        c_parts, first = (_CPart * len(parts))(), 0
        for number, part in enumerate(parts):
            c_parts[number] = _c_part(part, first)
            first += part.outputs
        c_linear = _CLinear(
            ctypes.addressof(c_parts), len(parts), inputs, outputs, None if bias is None else bias.data_ptr(),
            any(part.is_quantised for part in parts),
        )  # fmt: skip
        own = {"parts": tuple(parts), "_c_parts": c_parts, "_c_linear": c_linear, "address": ctypes.addressof(c_linear)}
        for name, value in own.items():
            object.__setattr__(self, name, value)

    parts: tuple[NativePart, ...]
    address: int  # of `struct linear`

    def first_outputs(self, count: int) -> NativeLinear:
        kept, left = [], count
        for part in self.parts:
            if left > 0:
                kept.append(part if part.outputs <= left else part.first_outputs(left))
                left -= part.outputs
        return NativeLinear(kept, self.inputs, self.bias)

    def rough(self, packer: QuantPacker) -> NativeLinear | None:
        """8-bit codes cut to their upper 4 bits. None if there is anything else, or a scale gets too large."""
        if len(self.parts) > 1 or self.bias is not None or self.parts[0].layout != _EIGHT_BITS:
            return None
        halves = packer.upper_halves(self.parts[0])
        return NativeLinear([halves], self.inputs, None) if all(map(_is_finite, halves.tensors())) else None

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for part in self.parts for tensor in part.tensors())

    def numbers(self) -> Iterator[torch.Tensor]:
        for part in self.parts:
            yield from (tensor for tensor in part.tensors() if tensor.is_floating_point())
        if self.bias is not None:
            yield self.bias


def _is_finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


def _c_part(part: NativePart, first: int) -> _CPart:
    tensors = (part.codes, part.scales, part.minimums, part.supers, part.super_minimums)
    addresses = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
    return _CPart(*addresses, first, part.outputs, part.super_groups, part.offset, part.layout)


def pack_floats(weight: torch.Tensor, dtype: torch.dtype) -> NativePart:
    """[outputs / 16][inputs][16], the last block filled up with zeros."""
    outputs, inputs = weight.shape
    blocks, whole = -(-outputs // BLOCK), outputs // BLOCK
    packed = torch.empty(blocks, inputs, BLOCK, dtype=dtype)
    packed[:whole].copy_(weight[: whole * BLOCK].view(whole, BLOCK, inputs).transpose(1, 2))
    if whole < blocks:
        packed[whole:].zero_()
        packed[whole, :, : outputs - whole * BLOCK].copy_(weight[whole * BLOCK :].T)
    return NativePart(FLOATS.index(dtype), outputs, packed)


@dataclass(frozen=True, slots=True)
class QuantPacker:
    """Interleaves quantised weights as this machine's kernels read them: `tile` outputs at a time."""

    tile: int
    unsigned_codes: bool  # 8-bit codes are stored plus 128

    def pack(self, weight: QuantisedTensor) -> NativePart:
        """Packs a few rows at a time, so that it needs little memory besides that of the packed weight."""
        part = self._empty(weight)
        outputs, inputs = weight.shape
        step = max(_CHUNK_WEIGHTS // inputs // self.tile, 1) * self.tile

        def fill(start: int) -> None:
            stop = min(start + step, outputs)
            self._fill(part, weight.format, weight.rows(start, stop), start // self.tile)

        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(fill, range(0, outputs, step)))
        return part

    def upper_halves(self, part: NativePart) -> NativePart:
        """4-bit codes for 8-bit ones. The missing bits count as the middle of their range."""
        assert part.scales is not None
        tiles, groups, _ = part.codes.shape
        upper = (part.codes ^ (0 if self.unsigned_codes else 0x80)).view(tiles, groups, 2, -1) >> 4
        codes = upper[:, :, 0] | upper[:, :, 1] << 4
        return replace(part, layout=_FOUR_BITS, codes=codes, scales=part.scales * 16, offset=7.5 / 16 - 8)

    def _empty(self, weight: QuantisedTensor) -> NativePart:
        form, (outputs, inputs) = weight.format, weight.shape
        tiles, has_minimum = -(-outputs // self.tile), form.minimum == "stored"
        kind = torch.float16 if form.scale == "half" else torch.int8

        def scales() -> torch.Tensor:
            return torch.zeros(tiles, inputs // form.group, self.tile, dtype=kind)

        def supers() -> torch.Tensor:
            return torch.zeros(tiles, inputs // form.super_inputs, self.tile)

        return NativePart(
            layout=len(FLOATS) + LAYOUTS.index((form.bits, form.scale, form.group, form.minimum)),
            outputs=outputs,
            codes=torch.empty(tiles, inputs // GROUP, self.tile * 4 * form.bits, dtype=torch.uint8),
            scales=scales(),
            minimums=scales() if has_minimum else None,
            supers=supers() if form.super_inputs else None,
            super_minimums=supers() if form.super_inputs and has_minimum else None,
            super_groups=form.super_inputs // GROUP,
            offset=form.offset,
        )

    def _fill(self, part: NativePart, form: QuantFormat, rows: QuantisedRows, first: int) -> None:
        tiles = slice(first, first + -(-len(rows.codes) // self.tile))
        part.codes.numpy()[tiles] = self._interleaved(form, rows.codes)
        for to, values in (
            (part.scales, rows.scales),
            (part.minimums, rows.minimums),
            (part.supers, rows.supers),
            (part.super_minimums, rows.super_minimums),
        ):
            if to is not None and values is not None:
                to.numpy()[tiles] = self._side_by_side(values)

    def _side_by_side(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """[rows, groups] -> [tiles, groups, tile], padded with zeros to whole tiles."""
        values = self._whole_tiles(values)
        return np.ascontiguousarray(values.reshape(-1, self.tile, values.shape[1]).swapaxes(1, 2))

    def _interleaved(self, form: QuantFormat, codes: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
        """[rows, inputs] -> [tiles, groups, bytes]: 4 inputs of each output of a tile, then the next 4."""
        whole: npt.NDArray[np.uint8] = np.ascontiguousarray(self._whole_tiles(codes)).view(np.uint8)
        fours = whole.view(np.uint32).reshape(-1, self.tile, whole.shape[1] // GROUP, GROUP // 4)
        chunks = np.ascontiguousarray(fours.transpose(0, 2, 3, 1))  # [tiles, groups, 8, tile]
        if form.bits == 4:
            chunks = np.bitwise_or(chunks[:, :, :4], chunks[:, :, 4:] << np.uint32(4))
        elif self.unsigned_codes:
            chunks = np.bitwise_xor(chunks, np.uint32(0x80808080))
        return chunks.view(np.uint8).reshape(*chunks.shape[:2], -1)

    def _whole_tiles(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        missing = -len(values) % self.tile
        return np.pad(values, ((0, missing), (0, 0))) if missing else values
