"""Quantised weights as the GPU's tensor cores read them, packed once on the device. quantised.cu has the order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

from slipstream.backends.torch.ops import Linear
from slipstream.models.quantised import GROUP, QuantFormat, QuantisedRows, QuantisedTensor

TILE = 16  # outputs
QUAD = 128  # inputs: 4 groups
_LANES = 32
_WIDE_OFFSET = 32  # 6-bit codes are stored plus this
_SIGN = 128  # bytes of scales are stored plus this
_CHUNK_WEIGHTS = 1 << 22  # taken apart at once by a thread
_THREADS = min(8, os.cpu_count() or 1)
# As quantised.cu numbers them.
HALF, BYTES, BYTES16, FLOAT = range(4)
MINIMUMS = {"none": 0, "stored": 1, "offset": 2}
_SCALE_BYTES = {HALF: 2, BYTES: 1, BYTES16: 1, FLOAT: 4}


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """One way that weights lie in memory; kernels are compiled for each."""

    bits: int  # of codes: 4, 6 or 8
    scale: int
    minimum: int

    @classmethod
    def of(cls, form: QuantFormat, inputs: int) -> CodeLayout:
        bits = 4 if form.bits == 4 else 6 if form.is_narrow else 8
        minimum = MINIMUMS[form.minimum]
        if form.scale == "half":
            return cls(bits, HALF, minimum)
        if form.group == 16:
            return cls(bits, BYTES16, minimum)
        shares_quads = form.super_inputs % QUAD == 0 or form.super_inputs == inputs
        return cls(bits, BYTES if shares_quads else FLOAT, minimum)

    @property
    def defines(self) -> dict[str, int]:
        return {"BITS": self.bits, "SCALE": self.scale, "MINIMUM": self.minimum}

    @property
    def scales_a_quad(self) -> int:
        return 8 if self.scale == BYTES16 else 4

    @property
    def numbers(self) -> int:
        """Of a group: scale, and minimum if it is stored."""
        return 2 if self.minimum == MINIMUMS["stored"] else 1

    def quad_bytes(self) -> tuple[int, int, int]:
        """Of a tile: low bits of codes, the two highest of 6 bits, scales."""
        low = (8 if self.bits == 8 else 4) * TILE * QUAD // 8
        scales = TILE * self.numbers * self.scales_a_quad * _SCALE_BYTES[self.scale]
        return low, 2 * TILE * QUAD // 8 if self.bits == 6 else 0, scales


@dataclass(frozen=True, slots=True)
class CodedPart:
    """Some outputs of a product, all stored alike. The first index of each tensor is that of tiles."""

    layout: CodeLayout
    outputs: int
    inputs: int
    codes: torch.Tensor  # [tiles, quads, bytes] uint8, as the next two
    high: torch.Tensor
    scales: torch.Tensor
    supers: torch.Tensor  # [tiles, supers, 8, outputs and numbers of a lane] float32; no supers: none
    offset: int = 0

    @property
    def num_tiles(self) -> int:
        return self.codes.shape[0]

    @property
    def num_quads(self) -> int:
        return self.codes.shape[1]

    @property
    def super_quads(self) -> int:
        """Quads that have a float of `supers` in common."""
        return self.num_quads // max(self.supers.shape[1], 1)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.codes, self.high, self.scales, self.supers

    def first_outputs(self, count: int) -> CodedPart:
        """Shares the memory. `count` is a multiple of 16."""
        codes, high, scales, supers = (tensor[: count // TILE] for tensor in self.tensors())
        return replace(self, outputs=count, codes=codes, high=high, scales=scales, supers=supers)

    def joins(self, other: CodedPart) -> bool:
        """Whether the outputs of another part can follow as if they were its own."""
        return self.outputs % TILE == 0 and (self.layout, self.inputs, self.offset, self.supers.shape[1:]) == (
            other.layout, other.inputs, other.offset, other.supers.shape[1:],
        )  # fmt: skip

    def joined(self, other: CodedPart) -> CodedPart:
        both = zip(self.tensors(), other.tensors(), strict=True)
        codes, high, scales, supers = (torch.cat(pair) for pair in both)
        outputs = self.outputs + other.outputs
        return replace(self, outputs=outputs, codes=codes, high=high, scales=scales, supers=supers)


@dataclass(frozen=True, slots=True)
class CodedLinear(Linear):
    """Parts side by side."""

    parts: tuple[CodedPart, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[CodedPart], bias: torch.Tensor | None) -> CodedLinear:
        joined = [parts[0]]
        for part in parts[1:]:
            if joined[-1].joins(part):
                joined[-1] = joined[-1].joined(part)
            else:
                joined.append(part)
        outputs = sum(part.outputs for part in joined)
        return cls(joined[0].codes, outputs, joined[0].inputs, bias, tuple(joined))

    def first_outputs(self, count: int) -> CodedLinear:
        kept, left = [], count
        for part in self.parts:
            if left > 0:
                kept.append(part if part.outputs <= left else part.first_outputs(left))
                left -= part.outputs
        return CodedLinear(kept[0].codes, count, self.inputs, self.bias, tuple(kept))

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for part in self.parts for tensor in part.tensors())

    def numbers(self) -> Iterator[torch.Tensor]:
        for part in self.parts:
            if part.layout.scale in (HALF, FLOAT):
                yield part.scales.view(torch.float16 if part.layout.scale == HALF else torch.float32)
            yield part.supers
        if self.bias is not None:
            yield self.bias


def stored_bytes(form: QuantFormat, shape: tuple[int, int]) -> int:
    """Bytes of a matrix on the device."""
    layout, (outputs, inputs) = CodeLayout.of(form, shape[1]), shape
    tiles, quads = -(-outputs // TILE), -(-inputs // QUAD)
    supers = inputs // form.super_inputs if layout.scale in (BYTES, BYTES16) else 0
    return tiles * (quads * sum(layout.quad_bytes()) + supers * TILE * layout.numbers * 4)


# -- packing ----------------------------------------------------------------------------------------------------------


def pack_part(weight: QuantisedTensor, device: torch.device) -> CodedPart:
    """A few rows at a time, so that little more memory is taken than the packed weight has."""
    part = _empty_part(weight, device)
    outputs, inputs = weight.shape
    step = max(_CHUNK_WEIGHTS // inputs // TILE, 1) * TILE

    def read(start: int) -> QuantisedRows:
        return weight.rows(start, min(start + step, outputs))

    starts = range(0, outputs, step)
    with ThreadPoolExecutor(_THREADS) as threads:
        for start, rows in zip(starts, threads.map(read, starts), strict=True):
            first = start // TILE
            _fill(part, weight.format, rows, slice(first, first + -(-len(rows.codes) // TILE)))
    return part


def _empty_part(weight: QuantisedTensor, device: torch.device) -> CodedPart:
    form, (outputs, inputs) = weight.format, weight.shape
    layout, tiles, quads = CodeLayout.of(form, inputs), -(-outputs // TILE), -(-inputs // QUAD)
    supers = inputs // form.super_inputs if layout.scale in (BYTES, BYTES16) else 0
    codes, high, scales = (
        torch.empty(tiles, quads, size, dtype=torch.uint8, device=device) for size in layout.quad_bytes()
    )
    floats = torch.empty(tiles, supers, 8, 2 * layout.numbers, device=device)
    return CodedPart(layout, outputs, inputs, codes, high, scales, floats, form.offset)


def _fill(part: CodedPart, form: QuantFormat, rows: QuantisedRows, tiles: slice) -> None:
    device, quads = part.codes.device, part.num_quads
    low, high = _interleaved(part.layout, _on(rows.codes.view(np.uint8), device), quads)
    part.codes[tiles] = low
    part.high[tiles] = high
    part.scales[tiles] = _scale_bytes(part.layout, form, rows, device, quads)
    if part.supers.shape[1]:
        floats = [rows.supers, rows.super_minimums][: part.layout.numbers]
        sides = torch.stack(
            [_by_lane(_on(each, device), part.supers.shape[1], 1) for each in floats if each is not None]
        )
        part.supers[tiles] = sides.permute(1, 4, 3, 2, 0, 5).reshape(-1, part.supers.shape[1], 8, 2 * len(floats))


def _on(values: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def _by_lane(values: torch.Tensor, count: int, each: int) -> torch.Tensor:
    """[outputs, numbers] -> [tiles, side, 8, count, each], with zeros for what there is not."""
    missing = -len(values) % TILE
    padded = F.pad(values, (0, count * each - values.shape[1], 0, missing))
    return padded.view(-1, 2, 8, count, each)


def _interleaved(layout: CodeLayout, codes: torch.Tensor, quads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[outputs, inputs] uint8 -> [tiles, quads, bytes], low bits and the two highest of 6."""
    if layout.bits == 6:
        codes = codes + _WIDE_OFFSET  # modulo 256
    # tile, side, lane / 4, quad, pair of groups, group, half, lane % 4, byte
    placed = _by_lane(codes, quads, QUAD).view(-1, 2, 8, quads, 2, 2, 2, 4, 4)
    tiles = len(placed)
    if layout.bits == 8:
        return placed.permute(0, 3, 4, 5, 2, 7, 6, 1, 8).reshape(tiles, quads, -1), codes.new_empty(tiles, quads, 0)
    low = placed & 15
    nibbles = low[..., 0, :, :] | low[..., 1, :, :] << 4
    packed = nibbles.permute(0, 3, 4, 2, 6, 5, 1, 7).reshape(tiles, quads, -1)
    if layout.bits == 4:
        return packed, codes.new_empty(tiles, quads, 0)
    top = placed >> 4
    crumbs = sum(top[:, side, ..., half, :, :] << 2 * (2 * half + side) for half in range(2) for side in range(2))
    assert isinstance(crumbs, torch.Tensor)  # tile, lane / 4, quad, pair, group, lane % 4, byte
    return packed, crumbs.permute(0, 2, 1, 5, 3, 4, 6).reshape(tiles, quads, -1)


def _scale_bytes(
    layout: CodeLayout, form: QuantFormat, rows: QuantisedRows, device: torch.device, quads: int
) -> torch.Tensor:
    """[tiles, quads, bytes]: of each lane / 4 both outputs, scales and then minimums."""
    pairs = [(rows.scales, rows.supers), (rows.minimums, rows.super_minimums)][: layout.numbers]
    sides = []
    for own, shared in pairs:
        assert own is not None
        values: npt.NDArray[np.generic] = own
        if layout.scale == FLOAT:
            assert shared is not None
            values = own.astype(np.float32) * np.repeat(shared, form.super_inputs // GROUP, axis=1)
        sides.append(_by_lane(_on(values, device), quads, layout.scales_a_quad))
    stacked = torch.stack(sides).permute(1, 4, 3, 2, 0, 5).contiguous()  # tile, quad, lane / 4, side, number, each
    stored = stacked.view(len(stacked), quads, -1).view(torch.uint8)
    return stored ^ _SIGN if layout.scale in (BYTES, BYTES16) else stored
