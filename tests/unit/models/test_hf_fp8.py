"""Folders in FP8: every weight is its scale times the value that torch gives the byte; damage is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import slipstream
from slipstream.backends.torch.options import TorchOptions
from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models import open_checkpoint
from slipstream.models.hf_fp8 import _VALUES
from tiny_coded import WEIGHTS, edit_config, write
from unit.models import model_files

PRODUCT = "model.layers.0.mlp.down_proj."
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


def test_every_byte_stands_for_what_torch_says() -> None:
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(_VALUES, theirs)


@pytest.mark.parametrize("name", CASES)
def test_every_weight_is_its_scale_times_its_value(name: str, tmp_path: Path) -> None:
    folder, expected = save_fp8(name, tmp_path)
    checkpoint = open_checkpoint(folder)
    for key, weight in expected.items():
        np.testing.assert_array_equal(checkpoint.tensor(key).data, weight.numpy())
        assert checkpoint.quant_format(key) is None is checkpoint.quantised(key)


def test_such_a_folder_answers_as_its_floats_do(tmp_path: Path) -> None:
    folder, expected = save_fp8("fp8 in blocks", tmp_path)
    save_file(load_file(tmp_path / "floats" / WEIGHTS) | expected, tmp_path / "floats" / WEIGHTS)
    answers = [
        slipstream.load(path, drafter="none", options=TorchOptions(device="cpu"))
        .generate([1, 2, 3], max_tokens=12, ignore_eos=True).result().tokens
        for path in (folder, tmp_path / "floats")
    ]  # fmt: skip
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{PRODUCT}weight_scale_inv": None}, "its scale is missing"),
        ({f"{PRODUCT}weight_scale_inv": torch.ones(3, 7)}, "a scale of the shape"),
        ({f"{PRODUCT}weight_scale_inv": torch.full((3, 3), float("nan"))}, "NaN or infinity"),
        ({f"{PRODUCT}weight": torch.zeros(48, 96).to(torch.float8_e4m3fn)}, "has the shape"),
    ],
)
def test_damaged_folders_are_refused(change: dict[str, torch.Tensor | None], message: str, tmp_path: Path) -> None:
    folder, _ = save_fp8("fp8 in blocks", tmp_path)
    tensors = load_file(folder / WEIGHTS) | change
    save_file({key: value for key, value in tensors.items() if value is not None}, folder / WEIGHTS)
    with pytest.raises(DamagedModelError, match=message):
        open_checkpoint(folder).tensor(f"{PRODUCT}weight")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "fp8", "fmt": "e5m2"}, "'e5m2'; e4m3 is supported"),
        (by("group"), "floats of 8 bits by tensor, channel and block"),
    ],
)
def test_other_kinds_are_refused(config: dict[str, object], message: str, tmp_path: Path) -> None:
    folder, _ = save_fp8("fp8 by tensor", tmp_path)
    edit_config(folder, quantization_config=config)
    with pytest.raises(UnsupportedModelError, match=message):
        open_checkpoint(folder)
