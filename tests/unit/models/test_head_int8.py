"""Heads with their products in 8 bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from slipstream.errors import DamagedModelError
from slipstream.models.draft_heads.export import save_head
from slipstream.models.draft_heads.files import HeadCheckpoint, check_finite, open_head
from slipstream.models.draft_heads.layouts import head_tensors
from slipstream.models.draft_heads.quantise import quantise_head
from slipstream.models.export.weights import floats
from slipstream.models.hf.int8_groups import codes_and_scales
from tiny_heads import HEAD, random_ids, random_tensors, save_tiny

WIDE = replace(
    HEAD,
    layer=replace(HEAD.layer, hidden_size=64, intermediate_size=96, num_heads=4, head_dim=16),
    target_hidden_size=64,
)


def opened(folder: Path) -> HeadCheckpoint:
    return open_head(folder, folder.name)


def eight_bits(tmp_path: Path) -> HeadCheckpoint:
    save_head(tmp_path / "head", WIDE, random_tensors(WIDE), random_ids(WIDE), "int8")
    return opened(tmp_path / "head")


def test_products_are_codes_and_the_rest_is_as_before(tmp_path: Path) -> None:
    head = eight_bits(tmp_path)
    for name, shape in head_tensors(WIDE).items():
        exact, found = floats(random_tensors(WIDE)[name]), floats(head.tensor(name))
        if len(shape) == 1:
            assert head.quantised(name) is None
            continue
        codes = head.quantised(name)
        assert codes is not None and codes.shape == shape
        groups = np.abs(exact.reshape(len(exact), -1, 32)).max(-1)
        off = np.abs(found - exact).reshape(len(exact), -1, 32).max(-1)
        assert np.all(off <= groups / 127 * 0.51 + 1e-6), name  # half a step, and the rounding of the scale
    assert head.weight_bytes() < opened(save_tiny(tmp_path / "wide", WIDE)).weight_bytes() / 3
    values = json.loads((tmp_path / "head" / "config.json").read_text())
    assert values["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] == 32


def test_a_group_of_zeros_stays_zero() -> None:
    weight = np.zeros((2, 64), np.float32)
    weight[1, 40] = -3.0
    codes, scales = codes_and_scales(weight)
    assert not codes[0].any() and codes[1, 40] == -127 and np.count_nonzero(codes) == 1
    assert np.isfinite(scales).all()


def test_quantise_keeps_ids_card_and_notes(tmp_path: Path) -> None:
    save_head(tmp_path / "head", WIDE, random_tensors(WIDE), random_ids(WIDE))
    (tmp_path / "head" / "README.md").write_text("# A card")
    num_bytes = quantise_head(opened(tmp_path / "head"), tmp_path / "small")
    small = opened(tmp_path / "small")
    assert num_bytes < (tmp_path / "head" / "model.safetensors").stat().st_size * 0.6
    assert small.token_ids().tolist() == random_ids(WIDE).tolist() and small.config.target == WIDE.target
    assert (tmp_path / "small" / "README.md").read_text() == "# A card"


@pytest.mark.parametrize("damage", ["no scales", "other groups", "NaN"])
def test_damaged_codes_are_refused(tmp_path: Path, damage: str) -> None:
    file = eight_bits(tmp_path).path / "model.safetensors"
    tensors = {name: array.copy() for name, array in load_file_with_floats(file).items()}
    if damage == "no scales":
        del tensors["fc.weight_scale"]
    elif damage == "other groups":
        tensors["fc.weight_scale"] = tensors["fc.weight_scale"][:, ::2].copy()
    else:
        tensors["fc.weight_scale"][0, 0] = np.nan
    save_file(tensors, file)
    with pytest.raises(DamagedModelError, match=r"fc\.weight"):
        check_finite(opened(tmp_path / "head"))


def load_file_with_floats(file: Path) -> dict[str, np.ndarray]:
    """numpy has no bfloat16, so those become floats."""
    head = open_head(file.parent, "head")
    names = [name for name, tensor in head.stored.items() if tensor.dtype == "BF16"]
    others = {name: tensor for name, tensor in head.stored.items() if name not in names}
    found = {name: floats(head.stored[name].read()) for name in names}
    kinds = {"I8": np.int8, "F16": np.float16, "I64": np.int64, "BOOL": np.bool_}
    for name, tensor in others.items():
        count = int(np.prod(tensor.shape))
        found[name] = np.frombuffer(tensor.data, kinds[tensor.dtype], count, tensor.start).reshape(tensor.shape)
    return found
