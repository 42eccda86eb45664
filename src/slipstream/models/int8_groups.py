"""Weights in 8 bits as compressed-tensors stores them: int8 codes, and beside them a scale for each group of inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.quantised import GROUP, Floats, QuantFormat, QuantisedRows, QuantisedTensor
from slipstream.models.safetensors_file import StoredTensor

CODES = "I8"  # the type of codes in safetensors
SCALE_SUFFIX = "_scale"  # of the name of a tensor's scales
_FORMAT = QuantFormat(bits=8, scale="half")
_MOST = 127


def is_quantisable(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[1] % GROUP == 0


def scales_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], shape[1] // GROUP


def codes_and_scales(weight: Floats) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """The nearest codes [outputs, inputs], and scales [outputs, groups]."""
    groups = weight.reshape(len(weight), -1, GROUP)
    scales = (np.abs(groups).max(-1) / _MOST).astype(np.float16)
    divisors = np.where(scales == 0, 1, scales).astype(np.float32)[:, :, None]
    codes = np.clip(np.rint(groups / divisors), -_MOST, _MOST).astype(np.int8)
    return codes.reshape(weight.shape), scales


def check_scales(codes: StoredTensor, scales: StoredTensor | None) -> None:
    """Raises UnsupportedModelError for codes of other groups or types, DamagedModelError where scales are missing."""
    if scales is None:
        raise DamagedModelError(
            f"{codes.path}: the tensor {codes.name!r} has codes of 8 bits, but no scales. Download it again."
        )
    if not is_quantisable(codes.shape) or scales.shape != scales_shape(codes.shape) or scales.dtype != "F16":
        raise UnsupportedModelError(
            f"{codes.path}: the tensor {codes.name!r} of shape {codes.shape} has scales of shape {scales.shape} as "
            f"{scales.dtype}; codes of 8 bits are supported with a scale in F16 for each {GROUP} inputs."
        )


def quantised_tensor(codes: StoredTensor, scales: StoredTensor) -> QuantisedTensor:
    """Of tensors that `check_scales` has passed."""
    outputs, inputs = codes.shape
    all_codes = np.frombuffer(codes.data, np.int8, outputs * inputs, codes.start).reshape(codes.shape)
    all_scales = np.asarray(scales.read().data, np.float16)

    def rows(start: int, stop: int) -> QuantisedRows:
        return QuantisedRows(all_codes[start:stop], all_scales[start:stop])

    return QuantisedTensor(_FORMAT, (outputs, inputs), rows)


def config_json() -> dict[str, Any]:
    """`quantization_config` of a folder whose products are stored so."""
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
