"""Products that a folder stores in FP8 (E4M3), with a scale for all, for each output or for each block of weights.

They are read as floats: eight bits of this kind span too much for whole numbers with one scale. A GPU keeps the codes
of those whose outputs have a scale each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.errors import DamagedModelError
from slipstream.models.checkpoint import RawTensor
from slipstream.models.export.weights import floats
from slipstream.models.hf.safetensors_file import FLOATS, StoredTensor
from slipstream.models.quantised import Floats, Fp8Tensor

STORED_AS = "F8_E4M3"
SCALES = ("weight_scale", "weight_scale_inv")  # both are multiplied with; the second is that of blocks
_UNUSED = ("input_scale",)  # of activations, which stay floats


def _values() -> Floats:
    """What each byte stands for: a sign, four bits of exponent, three of mantissa. The last of each sign is NaN."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, (byte & 7) / 8
    size = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7.0))
    size[(byte & 127) == 127] = np.nan
    return np.where(byte < 128, size, -size).astype(np.float32)


_VALUES = _values()


@dataclass(frozen=True, slots=True)
class Fp8Product:
    name: str
    shape: tuple[int, int]  # [outputs, inputs]
    parts: Mapping[str, StoredTensor]  # by what follows the product's name
    block: tuple[int, int]  # outputs and inputs that share a scale

    def tensor(self) -> RawTensor:
        """Raises DamagedModelError for codes or scales that are not finite."""
        codes, scales = self.parts["weight"].items(np.uint8), self._finite_scales()
        if has_nan(codes):
            raise nan_in_codes(self._place)
        weights = _VALUES[codes]
        rows, columns = (np.arange(size) // of for size, of in zip(self.shape, self.block, strict=True))
        if scales.shape[1] == 1:
            weights *= scales[rows]
        else:
            for row in range(len(scales)):  # block by block: a matrix of scales would take as much memory again
                weights[rows == row] *= scales[row][columns]
        return RawTensor("F32", weights)

    def format(self) -> None:
        return None

    def quantised(self) -> None:
        return None

    def fp8(self) -> Fp8Tensor | None:
        """None if inputs have scales of their own. Raises DamagedModelError for scales that are not finite."""
        if self.block[1] < self.shape[1]:
            return None
        scales = np.repeat(self._finite_scales()[:, 0], self.block[0])[: self.shape[0]]
        return Fp8Tensor(self._place, self.parts["weight"].items(np.uint8), scales)

    def is_finite(self) -> bool:
        return bool(np.isfinite(self._scales()).all()) and not has_nan(self.parts["weight"].items(np.uint8))

    @property
    def _place(self) -> str:
        return f"{self.parts['weight'].path}: {self.name!r}"

    def _finite_scales(self) -> Floats:
        scales = self._scales()
        if not np.isfinite(scales).all():
            raise DamagedModelError(f"{self._place} has scales with NaN or infinity. Download it again.")
        return scales

    def _scales(self) -> Floats:
        """[blocks of outputs, blocks of inputs]"""
        (outputs, inputs), (rows, columns) = self.shape, self.block
        stored = next(self.parts[name] for name in SCALES if name in self.parts)
        return floats(stored.read()).astype(np.float32).reshape(-(-outputs // rows), -(-inputs // columns))


def fp8_product(
    stored: Mapping[str, StoredTensor], name: str, shape: tuple[int, int], block: tuple[int, int] | None
) -> Fp8Product | None:
    """None if the weight is not in FP8. `block`: weights that share a scale, where config.json names it."""
    module, weight = name.removesuffix("weight"), stored.get(name)
    if weight is None or weight.dtype != STORED_AS:
        return None
    parts = {suffix: stored[module + suffix] for suffix in (*SCALES, *_UNUSED) if module + suffix in stored}
    scale = next((parts[suffix] for suffix in SCALES if suffix in parts), None)
    if scale is None:
        raise DamagedModelError(f"{weight.path}: {name!r} is in FP8, but its scale is missing. Download it again.")
    found = next((size for size, shapes in _shapes_of_scales(shape, block).items() if scale.shape in shapes), None)
    if weight.shape != shape or scale.dtype not in FLOATS or found is None:
        raise DamagedModelError(
            f"{weight.path}: {name!r} has the shape {weight.shape} and a scale of the shape {scale.shape} as "
            f"{scale.dtype}; expected {shape} and one scale for all, for each output or for each block. Weights and "
            "config.json do not belong together. Download both again."
        )
    return Fp8Product(name, shape, {"weight": weight} | parts, found)


def _shapes_of_scales(
    shape: tuple[int, int], block: tuple[int, int] | None
) -> dict[tuple[int, int], tuple[tuple[int, ...], ...]]:
    """By the outputs and inputs that share a scale."""
    outputs, inputs = shape
    known: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {
        (outputs, inputs): ((), (1,), (1, 1)),
        (1, inputs): ((outputs,), (outputs, 1)),
    }
    return known | ({block: ((-(-outputs // block[0]), -(-inputs // block[1])),)} if block else {})


def has_nan(codes: npt.NDArray[np.uint8]) -> bool:
    return bool(((codes & 127) == 127).any())


def nan_in_codes(place: str) -> DamagedModelError:
    """`place`: the file and the name of a tensor."""
    return DamagedModelError(f"{place} has NaN among its weights. Download it again.")
