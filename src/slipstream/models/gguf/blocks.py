"""The quantised blocks of GGUF files, taken apart into codes, scales and minimums. Formats as ggml defines them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from slipstream.models.quantised import Minimum, QuantFormat, QuantisedRows, QuantisedTensor

Bytes = npt.NDArray[np.uint8]
Split = Callable[[Bytes], QuantisedRows]  # blocks [number, bytes of a block] -> a row for each block

# The values that 4-bit codes of IQ4_NL and IQ4_XS stand for.
_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


@dataclass(frozen=True, slots=True)
class BlockKind:
    """One of ggml's types."""

    type_id: int
    block_inputs: int
    block_bytes: int
    format: QuantFormat
    split: Split

    def tensor(self, rows: Bytes) -> QuantisedTensor:
        """`rows`: [outputs, bytes of a row], as stored."""
        inputs = rows.shape[1] // self.block_bytes * self.block_inputs

        def read(start: int, stop: int) -> QuantisedRows:
            blocks = np.ascontiguousarray(rows[start:stop]).reshape(-1, self.block_bytes)
            return _whole_rows(self.split(blocks), stop - start)

        return QuantisedTensor(self.format, (len(rows), inputs), read)


def _whole_rows(blocks: QuantisedRows, rows: int) -> QuantisedRows:
    """The blocks of a row joined."""
    return QuantisedRows(
        codes=blocks.codes.reshape(rows, -1),
        scales=blocks.scales.reshape(rows, -1),
        minimums=None if blocks.minimums is None else blocks.minimums.reshape(rows, -1),
        supers=None if blocks.supers is None else blocks.supers.reshape(rows, -1),
        super_minimums=None if blocks.super_minimums is None else blocks.super_minimums.reshape(rows, -1),
    )


# -- pieces of blocks ---------------------------------------------------------------------------------------------


def _half(blocks: Bytes, at: int) -> npt.NDArray[np.float16]:
    """[blocks, 1]"""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _super(blocks: Bytes, at: int) -> npt.NDArray[np.float32]:
    return _half(blocks, at).astype(np.float32)


def _nibbles(stored: Bytes, run: int) -> Bytes:
    """4-bit codes: of each `run` bytes first the low halves, then the high ones."""
    runs = stored.reshape(len(stored), -1, 1, run)
    return np.concatenate((runs & 15, runs >> 4), axis=2).reshape(len(stored), -1)


def _crumbs(stored: Bytes, run: int) -> Bytes:
    """2-bit codes: of each `run` bytes first the lowest bits, then the next."""
    runs = stored.reshape(len(stored), -1, 1, run)
    return np.concatenate([(runs >> shift) & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(len(stored), -1)


def _bit_planes(stored: Bytes) -> Bytes:
    """Bit b of byte i is the code of input 32 b + i. [blocks, 32] -> [blocks, 256]"""
    return np.concatenate([(stored >> bit) & 1 for bit in range(8)], axis=1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """The bits of 32 inputs, in order. [blocks, 32]"""
    return np.unpackbits(np.ascontiguousarray(blocks[:, at : at + 4]), axis=1, bitorder="little")


def _with_high_bits(low: Bytes, high: Bytes, shift: int) -> Bytes:
    return np.asarray(low | high << np.uint8(shift), np.uint8)


def _signed(codes: npt.NDArray[np.uint8], offset: int) -> npt.NDArray[np.int8]:
    return (codes - np.uint8(offset)).view(np.int8)


# -- blocks of 32 inputs ------------------------------------------------------------------------------------------


def _q4_0(blocks: Bytes) -> QuantisedRows:
    return QuantisedRows(_nibbles(blocks[:, 2:], 16), _half(blocks, 0))


def _q4_1(blocks: Bytes) -> QuantisedRows:
    return QuantisedRows(_nibbles(blocks[:, 4:], 16), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Bytes) -> QuantisedRows:
    codes = _with_high_bits(_nibbles(blocks[:, 6:], 16), _fifth_bits(blocks, 2), 4)
    return QuantisedRows(_signed(codes, 16), _half(blocks, 0))


def _q5_1(blocks: Bytes) -> QuantisedRows:
    codes = _with_high_bits(_nibbles(blocks[:, 8:], 16), _fifth_bits(blocks, 4), 4)
    return QuantisedRows(codes.view(np.int8), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Bytes) -> QuantisedRows:
    return QuantisedRows(np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _half(blocks, 0))


def _iq4_nl(blocks: Bytes) -> QuantisedRows:
    return QuantisedRows(_IQ4_VALUES[_nibbles(blocks[:, 2:], 16)], _half(blocks, 0))


# -- blocks of 256 inputs -----------------------------------------------------------------------------------------


def _q2_k(blocks: Bytes) -> QuantisedRows:
    both = blocks[:, :16]
    return QuantisedRows(
        _crumbs(blocks[:, 16:80], 32), (both & 15).view(np.int8), (both >> 4).view(np.int8),
        _super(blocks, 80), -_super(blocks, 82),
    )  # fmt: skip


def _q3_k(blocks: Bytes) -> QuantisedRows:
    codes = _with_high_bits(_crumbs(blocks[:, 32:96], 32), _bit_planes(blocks[:, :32]), 2)
    low = _nibbles(blocks[:, 96:104], 8)
    high = np.concatenate([(blocks[:, 104:108] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1)
    return QuantisedRows(codes, _signed(_with_high_bits(low, high, 4), 32), supers=_super(blocks, 108))


def _k_scales(stored: Bytes) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """8 scales and 8 minimums of 6 bits, in 12 bytes."""
    first, second, rest = stored[:, :4], stored[:, 4:8], stored[:, 8:]
    scales = np.concatenate((first & 63, rest & 15 | first >> 6 << 4), axis=1)
    minimums = np.concatenate((second & 63, rest >> 4 | second >> 6 << 4), axis=1)
    return scales.view(np.int8), minimums.view(np.int8)


def _q4_k(blocks: Bytes) -> QuantisedRows:
    scales, minimums = _k_scales(blocks[:, 4:16])
    return QuantisedRows(_nibbles(blocks[:, 16:], 32), scales, minimums, _super(blocks, 0), -_super(blocks, 2))


def _q5_k(blocks: Bytes) -> QuantisedRows:
    scales, minimums = _k_scales(blocks[:, 4:16])
    codes = _with_high_bits(_nibbles(blocks[:, 48:], 32), _bit_planes(blocks[:, 16:48]), 4)
    return QuantisedRows(codes.view(np.int8), scales, minimums, _super(blocks, 0), -_super(blocks, 2))


def _q6_k(blocks: Bytes) -> QuantisedRows:
    codes = _with_high_bits(_nibbles(blocks[:, :128], 64), _crumbs(blocks[:, 128:192], 32), 4)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return QuantisedRows(_signed(codes, 32), scales, supers=_super(blocks, 208))


def _iq4_xs(blocks: Bytes) -> QuantisedRows:
    high = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16)
    low = _nibbles(blocks[:, 4:8].reshape(-1, 1), 1).reshape(-1, 8)
    highs = np.concatenate([(high >> np.uint16(2 * i)) & 3 for i in range(8)], axis=1).astype(np.uint8)
    codes = _IQ4_VALUES[_nibbles(blocks[:, 8:], 16)]
    return QuantisedRows(codes, _signed(_with_high_bits(low, highs, 4), 32), supers=_super(blocks, 0))


def _k_quant(bits: Literal[4, 8], group: Literal[16, 32], minimum: Minimum = "none", offset: int = 0) -> QuantFormat:
    is_narrow = bits == 8 and (group == 16 or minimum == "stored")
    return QuantFormat(bits, "bytes", group, minimum, offset, _K, half_supers=True, is_narrow=is_narrow)


_K = 256
_Q5_0, _Q5_1 = QuantFormat(8, "half", is_narrow=True), QuantFormat(8, "half", minimum="stored", is_narrow=True)
_KINDS = (
    BlockKind(2, 32, 18, QuantFormat(4, "half", minimum="offset", offset=-8), _q4_0),
    BlockKind(3, 32, 20, QuantFormat(4, "half", minimum="stored"), _q4_1),
    BlockKind(6, 32, 22, _Q5_0, _q5_0),
    BlockKind(7, 32, 24, _Q5_1, _q5_1),
    BlockKind(8, 32, 34, QuantFormat(8, "half"), _q8_0),
    BlockKind(10, _K, 84, _k_quant(4, 16, "stored"), _q2_k),
    BlockKind(11, _K, 110, _k_quant(4, 16, "offset", -4), _q3_k),
    BlockKind(12, _K, 144, _k_quant(4, 32, "stored"), _q4_k),
    BlockKind(13, _K, 176, _k_quant(8, 32, "stored"), _q5_k),
    BlockKind(14, _K, 210, _k_quant(8, 16), _q6_k),
    BlockKind(20, 32, 18, QuantFormat(8, "half"), _iq4_nl),
    BlockKind(23, _K, 136, _k_quant(8, 32), _iq4_xs),
)
BLOCK_KINDS = {kind.type_id: kind for kind in _KINDS}
