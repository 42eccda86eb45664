"""Products that a folder stores as codes (GPTQ, AWQ, compressed-tensors), taken apart without rounding.

A weight is scale * (code - zero point). All codes are unsigned here, and so are zero points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.checkpoint import RawTensor
from slipstream.models.export.weights import floats
from slipstream.models.hf.quantisation import CodeKind, QuantScheme
from slipstream.models.hf.safetensors_file import StoredTensor
from slipstream.models.quantised import GROUP, Codes, Floats, QuantFormat, QuantisedRows, QuantisedTensor, unpacked

Bytes = npt.NDArray[np.uint8]
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place of each of 8 outputs in a word, which has 0, 2, 4, 6, 1, 3, 5, 7
WORD_BITS = 32
_FINE_BITS = 0xFF  # of a float32; a scale without them has 16 bits, and times 8 more it is still exact


@dataclass(frozen=True, slots=True)
class CodedProduct:
    """One product; shapes and types are checked, values are read when they are asked for."""

    name: str
    shape: tuple[int, int]  # [outputs, inputs]
    kind: CodeKind
    scheme: QuantScheme
    parts: Mapping[str, StoredTensor]  # by what follows the product's name

    def fp8(self) -> None:
        return None

    def quantised(self) -> QuantisedTensor:
        """Raises DamagedModelError for scales that are not finite."""
        zeros, scales, group = self._zeros(), self._scales(), self.kind.group or self.shape[1]
        form = self._format(zeros, scales)

        def rows(start: int, stop: int) -> QuantisedRows:
            codes, own = self._signed(start, stop, form, zeros), slice(start, stop)
            if form.scale == "half":
                return QuantisedRows(codes, np.repeat(scales[own].astype(np.float16), group // GROUP, axis=1))
            ones = np.ones((stop - start, self.shape[1] // GROUP), np.int8)
            if form.minimum == "none":
                return QuantisedRows(codes, ones, supers=scales[own])
            minimums = (zeros[own] - np.uint8(self._middle if form.bits == 8 else 0)).view(np.int8)
            return QuantisedRows(codes, ones, np.repeat(minimums, group // GROUP, axis=1), scales[own], -scales[own])

        return QuantisedTensor(form, self.shape, rows)

    def format(self) -> QuantFormat:
        return self._format(self._zeros(), self._scales())

    def tensor(self) -> RawTensor:
        codes = self.quantised()
        return RawTensor("F32", unpacked(codes.format, codes.rows(0, self.shape[0])))

    @property
    def _middle(self) -> int:
        return 1 << (self.kind.bits - 1)

    def _format(self, zeros: Bytes, scales: Floats) -> QuantFormat:
        """The smallest one that holds every weight exactly."""
        zero, group, bits = int(zeros[0, 0]), self.kind.group or self.shape[1], self.kind.bits
        is_constant = bool((zeros == zero).all())
        with np.errstate(over="ignore"):
            fits_half = bool((scales.astype(np.float16) == scales).all())
        if bits == 4 and is_constant and fits_half:
            return QuantFormat(4, "half", minimum="offset", offset=-zero)
        if bits == 8 and is_constant and zero == self._middle:
            return QuantFormat(8, "half") if fits_half else QuantFormat(8, "bytes", super_inputs=group)
        if not (scales.view(np.uint32) & _FINE_BITS).any():
            return QuantFormat(4 if bits == 4 else 8, "bytes", minimum="stored", super_inputs=group)
        if bits == 4:  # the difference of code and zero point
            return QuantFormat(8, "bytes", super_inputs=group)
        raise UnsupportedModelError(
            f"{self._path}: {self.name!r} has codes of 8 bits with zero points and scales of 32 bits, which can't be "
            "held exactly. Use another engine for it (--engine vllm), or a checkpoint with scales of 16 bits."
        )

    def _signed(self, start: int, stop: int, form: QuantFormat, zeros: Bytes) -> Codes:
        """Codes as `form` has them."""
        codes = _CODES[self.scheme.packing](self, start, stop)
        if form.bits == 4:
            return codes
        if self.kind.bits == 8:
            return (codes - np.uint8(self._middle)).view(np.int8)
        each = np.repeat(zeros[start:stop], self.kind.group or self.shape[1], axis=1)
        return (codes - each).view(np.int8)

    def _scales(self) -> Floats:
        """[outputs, groups]"""
        if not self.is_finite():
            name = self._stored_scales.name
            raise DamagedModelError(f"{self._path}: the tensor {name!r} has NaN or infinity. Download it again.")
        scales = floats(self._stored_scales.read())
        scales = scales.T if "scales" in self.parts else scales.reshape(self.shape[0], -1)
        return np.ascontiguousarray(scales, np.float32)

    def is_finite(self) -> bool:
        """Codes always are, so it is a question of the scales."""
        return bool(np.isfinite(floats(self._stored_scales.read())).all())

    @property
    def _stored_scales(self) -> StoredTensor:
        return self.parts["scales" if "scales" in self.parts else "weight_scale"]

    def _zeros(self) -> Bytes:
        """[outputs, groups]"""
        bits = self.kind.bits
        if "qzeros" in self.parts:
            zeros = _fields(self.parts["qzeros"].items(np.uint32), bits)
            zeros = _in_order(zeros) if self.scheme.packing == "awq" else zeros
            zeros = zeros[:, : self.shape[0]] + np.uint8(self.scheme.zero_shift)  # the largest plus one is zero again
            return np.ascontiguousarray(zeros.T) & np.uint8((1 << bits) - 1)
        stored = self.parts.get("weight_zero_point")
        if stored is None:
            return np.full((self.shape[0], self.kind.groups(self.shape[1])), self._middle, np.uint8)
        if stored.dtype == "I32":
            words = np.ascontiguousarray(stored.items(np.uint32).T)
            return np.ascontiguousarray(_fields(words, bits).T[: self.shape[0]])
        return stored.items(np.uint8).reshape(self.shape[0], -1) + np.uint8(self._middle)

    @property
    def _path(self) -> object:
        return next(iter(self.parts.values())).path


# -- words of 32 bits ---------------------------------------------------------------------------------------------


def _fields(words: npt.NDArray[np.uint32], bits: int) -> Bytes:
    """The values in each row of words, lowest bits first. [rows, words] -> [rows, words * 32 / bits]"""
    stored = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
    if bits == 8:
        return stored
    return np.stack((stored & 15, stored >> 4), axis=-1).reshape(len(words), -1)


def _in_order(values: Bytes) -> Bytes:
    """Of each 8 outputs, as AWQ has them in a word."""
    return values.reshape(len(values), -1, 8)[:, :, _AWQ_ORDER].reshape(values.shape)


def _gptq_codes(product: CodedProduct, start: int, stop: int) -> Bytes:
    """A word has the codes of some inputs. [inputs * bits / 32, outputs]"""
    return _fields(product.parts["qweight"].items(np.uint32)[:, start:stop].T, product.kind.bits)


def _awq_codes(product: CodedProduct, start: int, stop: int) -> Bytes:
    """A word has the codes of 8 outputs. [inputs, outputs / 8]"""
    first = start // 8
    words = np.ascontiguousarray(product.parts["qweight"].items(np.uint32)[:, first : -(-stop // 8)].T)
    codes = np.empty((len(words), 8, words.shape[1]), np.uint8)
    for output, place in enumerate(_AWQ_ORDER):
        codes[:, output] = words >> np.uint32(4 * place) & np.uint32(15)
    return codes.reshape(-1, words.shape[1])[start - first * 8 : stop - first * 8]


def _packed_codes(product: CodedProduct, start: int, stop: int) -> Bytes:
    return _fields(product.parts["weight_packed"].items(np.uint32)[start:stop], product.kind.bits)


def _int8_codes(product: CodedProduct, start: int, stop: int) -> Bytes:
    return product.parts["weight"].items(np.uint8)[start:stop] + np.uint8(128)


_CODES: dict[str, Callable[[CodedProduct, int, int], Bytes]] = {
    "gptq": _gptq_codes,
    "awq": _awq_codes,
    "packed": _packed_codes,
    "int8": _int8_codes,
}
