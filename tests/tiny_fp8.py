"""Tiny Llama folders in FP8, in each of the ways that folders have it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from tiny_coded import WEIGHTS, write
from unit.models import model_files

COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
}


def by(strategy: str) -> dict[str, object]:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy}
    return COMPRESSED | {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


# By name: the config, and the blocks of weights that share a scale; 0 is all outputs or inputs.
CASES: dict[str, tuple[dict[str, object], tuple[int, int]]] = {
    "compressed-tensors by tensor": (by("tensor"), (0, 0)),
    "compressed-tensors by channel": (by("channel"), (1, 0)),
    "fp8 by tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, (0, 0)),
    "fp8 in blocks": ({"quant_method": "fp8", "weight_block_size": [24, 48]}, (24, 48)),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, (1, 0)),
}


def save_fp8(name: str, folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A folder in FP8 with random weights, and what they are."""
    config, block = CASES[name]
    model_files.save_model(folder / "floats", "Llama", intermediate_size=128, tie_word_embeddings=False)
    tensors, expected = load_file(folder / "floats" / WEIGHTS), {}
    torch.manual_seed(0)
    for key in [key for key in tensors if key.endswith("proj.weight")]:
        outputs, inputs = tensors[key].shape
        rows, columns = block[0] or outputs, block[1] or inputs
        codes = (torch.randn(outputs, inputs) * 50).to(torch.float8_e4m3fn)
        scale = torch.rand(-(-outputs // rows), -(-inputs // columns)) / 100
        each = scale.repeat_interleave(rows, 0)[:outputs].repeat_interleave(columns, 1)[:, :inputs]
        tensors[key], expected[key] = codes, codes.float() * each
        suffix = "weight_scale_inv" if "weight_block_size" in config else "weight_scale"
        tensors[key.removesuffix("weight") + suffix] = scale.reshape(()) if scale.numel() == 1 else scale
        if config.get("activation_scheme") == "static":
            tensors[key.removesuffix("weight") + "input_scale"] = torch.tensor(0.5)
    write(folder / "fp8", folder / "floats", tensors, {"quantization_config": config})
    return folder / "fp8", expected
