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
from slipstream.models.hf.fp8 import _VALUES
from tiny_coded import WEIGHTS, edit_config
from tiny_fp8 import CASES, by, save_fp8

PRODUCT = "model.layers.0.mlp.down_proj."


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
        kept = checkpoint.fp8(key)
        assert (kept is None) == (name == "fp8 in blocks")  # inputs of an output have several scales there
        if kept:
            np.testing.assert_array_equal(_VALUES[kept.codes] * kept.scales[:, None], weight.numpy())
    assert checkpoint.fp8("lm_head.weight") is None


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
        ({f"{PRODUCT}weight": torch.full((64, 128), float("nan")).to(torch.float8_e4m3fn)}, "NaN among its weights"),
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
