"""Writes weights in 8 bits as compressed-tensors does: int8 codes, and beside them a scale for each group of inputs.

`hf_products` and `hf_codes` read them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.models.quantised import GROUP, Floats

CODES = "I8"  # the type of codes in safetensors
SCALE_SUFFIX = "_scale"  # of the name of a tensor's scales
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


def config_json() -> dict[str, Any]:
    """`quantization_config` of a folder whose products are stored so."""
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
