"""Quantised weights, taken apart without rounding: codes, scales and minimums of groups of inputs.

A weight is scale * code + minimum. Nothing is computed that could round, so what a backend makes of it has the same
weights as the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

GROUP = 32  # inputs; the largest group that has a scale of its own

Codes = npt.NDArray[np.uint8] | npt.NDArray[np.int8]
Scales = npt.NDArray[np.float16] | npt.NDArray[np.int8]
Floats = npt.NDArray[np.float32]
Minimum = Literal["none", "stored", "offset"]  # offset: the scale times one number, for all groups


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """How a kind of quantised weights is put together."""

    bits: Literal[4, 8]  # of a code here; 4-bit codes are unsigned, 8-bit codes signed
    scale: Literal["half", "bytes"]  # half precision; or a whole number, times a float that `super_inputs` share
    group: Literal[16, 32] = 32  # inputs with a scale of their own
    minimum: Minimum = "none"
    offset: int = 0
    super_inputs: int = 0  # inputs with a float in common; 0: there is none
    half_supers: bool = False  # half precision holds these floats
    is_narrow: bool = False  # 8-bit codes that are all from -32 to 31

    def stored_bytes(self, num_weights: int) -> int:
        """Bytes of so many weights in this format."""
        per_group = (2 if self.scale == "half" else 1) * (2 if self.minimum == "stored" else 1)
        per_super = 4 * (2 if self.minimum == "stored" else 1)
        supers = num_weights // self.super_inputs if self.super_inputs else 0
        return num_weights * self.bits // 8 + num_weights // self.group * per_group + supers * per_super


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """Some rows of a quantised matrix."""

    codes: Codes  # [rows, inputs]
    scales: Scales  # [rows, inputs / group]
    minimums: Scales | None = None  # [rows, inputs / group], stored as scales are
    supers: Floats | None = None  # [rows, inputs / super_inputs]
    super_minimums: Floats | None = None  # the same


@dataclass(frozen=True, slots=True)
class QuantisedTensor:
    """A quantised matrix, read a few rows at a time."""

    format: QuantFormat
    shape: tuple[int, int]  # [outputs, inputs]
    rows: Callable[[int, int], QuantisedRows]  # from, to

    @property
    def num_bytes(self) -> int:
        return self.format.stored_bytes(self.shape[0] * self.shape[1])


@dataclass(frozen=True, slots=True)
class Fp8Tensor:
    """A matrix in FP8 (E4M3) whose outputs have a scale each."""

    name: str  # with its file, for messages
    codes: npt.NDArray[np.uint8]  # [outputs, inputs], a view of the file
    scales: Floats  # [outputs]

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def num_bytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


def unpacked(format: QuantFormat, rows: QuantisedRows) -> Floats:
    """The weights as floats, rounded as the `gguf` package rounds them. [rows, inputs]"""
    scales, minimums = (_group_floats(own, shared, format) for own, shared in _pairs(rows))
    assert scales is not None
    codes = rows.codes.astype(np.float32)
    if format.minimum == "offset":
        codes += format.offset
    groups = codes.reshape(len(codes), -1, format.group)
    weights = scales[:, :, None] * groups
    if minimums is not None:
        weights = weights + minimums[:, :, None]
    return weights.reshape(codes.shape)


def _pairs(rows: QuantisedRows) -> tuple[tuple[Scales | None, Floats | None], tuple[Scales | None, Floats | None]]:
    return (rows.scales, rows.supers), (rows.minimums, rows.super_minimums)


def _group_floats(own: Scales | None, shared: Floats | None, format: QuantFormat) -> Floats | None:
    if own is None or shared is None:
        return None if own is None else own.astype(np.float32)
    each = np.repeat(shared, format.super_inputs // format.group, axis=1)
    return np.asarray(own.astype(np.float32) * each, np.float32)
