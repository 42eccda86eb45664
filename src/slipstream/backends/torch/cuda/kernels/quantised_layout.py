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
from slipstream.models.quantised import GROUP, Floats, QuantFormat, QuantisedRows, QuantisedTensor, Scales

TILE = 16  # outputs
QUAD = 128  # inputs: 4 groups
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
    super_bytes: int = 0  # of the float that bytes are multiplied with: 2, 4, or 0 where there is none

    @classmethod
    def of(cls, form: QuantFormat, inputs: int) -> CodeLayout:
        bits = 4 if form.bits == 4 else 6 if form.is_narrow else 8
        minimum, super_bytes = MINIMUMS[form.minimum], 2 if form.half_supers else 4
        if form.scale == "half":
            return cls(bits, HALF, minimum)
        if form.group == 16:
            return cls(bits, BYTES16, minimum, super_bytes)
        if form.super_inputs % QUAD == 0 or form.super_inputs == inputs:
            return cls(bits, BYTES, minimum, super_bytes)
        return cls(bits, FLOAT, minimum)

    @property
    def defines(self) -> dict[str, int]:
        return {"BITS": self.bits, "SCALE": self.scale, "MINIMUM": self.minimum, "SUPER_BYTES": self.super_bytes}

    @property
    def scales_a_quad(self) -> int:
        return 8 if self.scale == BYTES16 else 4

    @property
    def numbers(self) -> int:
        """Of a group: scale, and minimum if it is stored."""
        return 2 if self.minimum == MINIMUMS["stored"] else 1

    @property
    def pieces(self) -> tuple[int, int, int, int]:
        """Bytes of what follows each other in a record: low bits of codes, the two highest of 6, scales, supers."""
        low = (8 if self.bits == 8 else 4) * TILE * QUAD // 8
        high = 2 * TILE * QUAD // 8 if self.bits == 6 else 0
        scales = TILE * self.numbers * self.scales_a_quad * _SCALE_BYTES[self.scale]
        return low, high, scales, TILE * self.numbers * self.super_bytes


@dataclass(frozen=True, slots=True)
class CodedPart:
    """Some outputs of a product, all stored alike."""

    layout: CodeLayout
    outputs: int
    inputs: int
    records: torch.Tensor  # [tiles, quads, bytes] uint8
    offset: int = 0

    @property
    def num_tiles(self) -> int:
        return self.records.shape[0]

    @property
    def num_quads(self) -> int:
        return self.records.shape[1]

    def pieces(self) -> tuple[torch.Tensor, ...]:
        """[tiles, quads, bytes] of each piece of the layout."""
        return torch.split(self.records, list(self.layout.pieces), dim=2)

    def numbers(self) -> Iterator[torch.Tensor]:
        """All floats."""
        *_, scales, supers = self.pieces()
        if self.layout.scale in (HALF, FLOAT):
            yield scales.contiguous().view(torch.float16 if self.layout.scale == HALF else torch.float32)
        elif self.layout.super_bytes:
            yield supers.contiguous().view(torch.float16 if self.layout.super_bytes == 2 else torch.float32)

    def first_outputs(self, count: int) -> CodedPart:
        """Shares the memory. `count` is a multiple of 16."""
        return replace(self, outputs=count, records=self.records[: count // TILE])

    def joins(self, other: CodedPart) -> bool:
        """Whether the outputs of another part can follow as if they were its own."""
        own = (self.layout, self.inputs, self.offset)
        return self.outputs % TILE == 0 and own == (other.layout, other.inputs, other.offset)

    def joined(self, other: CodedPart) -> CodedPart:
        return replace(self, outputs=self.outputs + other.outputs, records=torch.cat((self.records, other.records)))


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
        return cls(joined[0].records, outputs, joined[0].inputs, bias, parts=tuple(joined))

    def first_outputs(self, count: int) -> CodedLinear:
        kept, left = [], count
        for part in self.parts:
            if left > 0:
                kept.append(part if part.outputs <= left else part.first_outputs(left))
                left -= part.outputs
        return CodedLinear(kept[0].records, count, self.inputs, self.bias, parts=tuple(kept))

    @property
    def num_bytes(self) -> int:
        return sum(part.records.nbytes for part in self.parts)

    def numbers(self) -> Iterator[torch.Tensor]:
        for part in self.parts:
            yield from part.numbers()
        if self.bias is not None:
            yield self.bias


def stored_bytes(form: QuantFormat, shape: tuple[int, int]) -> int:
    """Bytes of a matrix on the device."""
    outputs, inputs = shape
    return -(-outputs // TILE) * -(-inputs // QUAD) * sum(CodeLayout.of(form, inputs).pieces)


# -- packing ----------------------------------------------------------------------------------------------------------


def pack_part(weight: QuantisedTensor, device: torch.device) -> CodedPart:
    """A few rows at a time, so that little more memory is taken than the packed weight has."""
    outputs, inputs = weight.shape
    layout, tiles, quads = CodeLayout.of(weight.format, inputs), -(-outputs // TILE), -(-inputs // QUAD)
    records = torch.empty(tiles, quads, sum(layout.pieces), dtype=torch.uint8, device=device)
    part = CodedPart(layout, outputs, inputs, records, weight.format.offset)
    step = max(_CHUNK_WEIGHTS // inputs // TILE, 1) * TILE

    def read(start: int) -> QuantisedRows:
        return weight.rows(start, min(start + step, outputs))

    starts = range(0, outputs, step)
    with ThreadPoolExecutor(_THREADS) as threads:
        for start, rows in zip(starts, threads.map(read, starts), strict=True):
            first = start // TILE
            _fill(replace(part, records=records[first : first + -(-len(rows.codes) // TILE)]), weight.format, rows)
    return part


def _fill(part: CodedPart, form: QuantFormat, rows: QuantisedRows) -> None:
    device, layout, quads = part.records.device, part.layout, part.num_quads
    low, high, scales, supers = part.pieces()
    codes = _interleaved(layout, _on(rows.codes.view(np.uint8), device), quads)
    low.copy_(codes[0])
    if layout.bits == 6:
        high.copy_(codes[1])
    own: list[Scales | Floats | None] = [rows.scales, rows.minimums]
    shared = [rows.supers, rows.super_minimums]
    if layout.scale == FLOAT:
        own = [_products(each, of, form) for each, of in zip(own, shared, strict=True)]
    stored = _numbers(own[: layout.numbers], device, quads, layout.scales_a_quad)
    scales.copy_(stored ^ _SIGN if layout.scale in (BYTES, BYTES16) else stored)
    if layout.super_bytes:
        kind = np.float16 if layout.super_bytes == 2 else np.float32
        each = [None if of is None else _of_quads(of, form, quads).astype(kind) for of in shared]
        supers.copy_(_numbers(each[: layout.numbers], device, quads, 1))


def _products(own: Scales | Floats | None, shared: Floats | None, form: QuantFormat) -> Floats | None:
    """A float for each group, where groups of one quad have different ones."""
    if own is None or shared is None:
        return None
    return np.asarray(own.astype(np.float32) * np.repeat(shared, form.super_inputs // GROUP, axis=1), np.float32)


def _of_quads(shared: Floats, form: QuantFormat, quads: int) -> Floats:
    """[outputs, quads]"""
    return np.repeat(shared, quads if shared.shape[1] == 1 else form.super_inputs // QUAD, axis=1)


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


def _numbers(
    kinds: Sequence[npt.NDArray[np.generic] | None], device: torch.device, quads: int, each: int
) -> torch.Tensor:
    """[tiles, quads, bytes]: of each lane / 4 both outputs, and of those scales and then minimums."""
    sides = [_by_lane(_on(kind, device), quads, each) for kind in kinds if kind is not None]
    stacked = torch.stack(sides).permute(1, 4, 3, 2, 0, 5).contiguous()  # tile, quad, lane / 4, side, number, each
    return stacked.view(len(stacked), quads, -1).view(torch.uint8)
