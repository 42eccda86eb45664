"""Writes weights in 8 or 4 bits as compressed-tensors does: codes, and beside them a scale for each group of inputs.

`hf_products` and `hf_codes` read them.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from slipstream.models.quantised import GROUP, Floats

Bits = Literal[4, 8]
_FORMATS: dict[Bits, str] = {8: "int-quantized", 4: "pack-quantized"}
RANGES: dict[Bits, tuple[int, int]] = {8: (-127, 127), 4: (-8, 7)}  # of codes
LARGEST: dict[Bits, int] = {8: 127, 4: -8}  # the code of a group's weight that is farthest from zero


def is_quantisable(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[1] % GROUP == 0


def stored_parts(name: str, weight: Floats, bits: Bits) -> dict[str, npt.NDArray[np.generic]]:
    """The tensors of a file that hold the weight `name`."""
    codes, scales = codes_and_scales(weight, bits)
    if bits == 8:
        return {name: codes, f"{name}_scale": scales}
    unsigned = (codes + 8).astype(np.uint8)
    words = (unsigned[:, ::2] | unsigned[:, 1::2] << 4).view("<i4")
    return {f"{name}_packed": words, f"{name}_scale": scales, f"{name}_shape": np.array(weight.shape, np.int64)}


def codes_and_scales(weight: Floats, bits: Bits) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """The nearest codes [outputs, inputs], and scales [outputs, groups], which may be negative."""
    groups = weight.reshape(len(weight), -1, GROUP)
    farthest = np.take_along_axis(groups, np.abs(groups).argmax(-1)[:, :, None], -1)[:, :, 0]
    scales = (farthest / np.float32(LARGEST[bits])).astype(np.float16)
    divisors = np.where(scales == 0, 1, scales).astype(np.float32)[:, :, None]
    codes = np.clip(np.rint(groups / divisors), *RANGES[bits]).astype(np.int8)
    return codes.reshape(weight.shape), scales


def config_json(bits: Bits) -> dict[str, Any]:
    """`quantization_config` of a folder whose products are stored so."""
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMATS[bits],
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
