"""Quantised folders: every weight is what the format says, and what can't be read is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.errors import DamagedModelError, ModelError, UnsupportedModelError
from slipstream.models import open_checkpoint
from slipstream.models.quantised import QuantFormat, unpacked
from tiny_coded import CASES, WEIGHTS, Case, edit_config, random_product, save_both, stored, words

HALF_4 = QuantFormat(4, "half", minimum="offset", offset=-8)
FORMATS = {
    "gptq symmetric": HALF_4,
    "gptq": QuantFormat(4, "bytes", minimum="stored", super_inputs=64),
    "gptq symmetric of 8 bits": QuantFormat(8, "half"),
    "gptq of 8 bits": QuantFormat(8, "bytes", minimum="stored", super_inputs=64),
    "awq": QuantFormat(4, "bytes", minimum="stored", super_inputs=64),
    "packed by row": HALF_4,
    "packed with float32 scales": QuantFormat(8, "bytes", super_inputs=32),
    "int8": QuantFormat(8, "bytes", minimum="stored", super_inputs=64),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_every_weight_is_its_scale_times_code_minus_zero_point(case: Case, tmp_path: Path) -> None:
    folder, _, expected = save_both(case, tmp_path)
    checkpoint = open_checkpoint(folder)
    for name, weight in expected.items():
        raw = checkpoint.tensor(name)
        assert raw.kind == "F32"
        np.testing.assert_array_equal(raw.data, weight.numpy(), name)
        codes = checkpoint.quantised(name)
        assert codes is not None and codes.format == checkpoint.quant_format(name)
        part = unpacked(codes.format, codes.rows(3, 29))  # no multiples of the outputs in a word
        np.testing.assert_array_equal(part, weight.numpy()[3:29], name)
    assert checkpoint.quantised("lm_head.weight") is None is checkpoint.quant_format("model.norm.weight")


@pytest.mark.parametrize("name", FORMATS)
def test_the_smallest_exact_layout_is_taken(name: str, tmp_path: Path) -> None:
    folder, _, _ = save_both(CASES[name], tmp_path)
    assert open_checkpoint(folder).quant_format("model.layers.1.mlp.down_proj.weight") == FORMATS[name]


def test_bfloat16_scales_that_half_precision_holds_stay_half(tmp_path: Path) -> None:
    folder, _, _ = save_both(CASES["packed symmetric"], tmp_path)
    assert open_checkpoint(folder).quant_format(f"{PRODUCT}weight") == HALF_4
    tensors = load_file(folder / WEIGHTS)
    tensors[f"{PRODUCT}weight_scale"][0, 0] = 3e-9
    save_file(tensors, folder / WEIGHTS)
    assert open_checkpoint(folder).quant_format(f"{PRODUCT}weight") == QuantFormat(
        4, "bytes", minimum="stored", super_inputs=32
    )


def test_words_have_the_order_of_the_formats() -> None:
    values = np.arange(8)[None]
    assert words(values, 4, tuple(range(8))).item() == 0x76543210
    assert words(values, 4, (0, 2, 4, 6, 1, 3, 5, 7)).item() == 0x75316420


def test_biases_of_zeros_are_passed_over(tmp_path: Path) -> None:
    folder, _, _ = save_both(CASES["gptq"], tmp_path)
    tensors = load_file(folder / WEIGHTS)
    save_file(tensors | {f"{PRODUCT}bias": torch.zeros(64)}, folder / WEIGHTS)
    assert open_checkpoint(folder).quantised(f"{PRODUCT}weight")
    save_file(tensors | {f"{PRODUCT}bias": torch.ones(64)}, folder / WEIGHTS)
    with pytest.raises(UnsupportedModelError, match=r"o_proj\.bias"):
        open_checkpoint(folder)


def test_products_of_two_kinds_are_told_apart_by_their_shapes(tmp_path: Path) -> None:
    folder, _, _ = save_both(CASES["packed"], tmp_path)
    config = copy.deepcopy(CASES["packed"].config)
    config["config_groups"] |= {"group_1": CASES["packed of 8 bits"].config["config_groups"]["group_0"]}  # type: ignore
    edit_config(folder, quantization_config=config)
    eight = random_product(CASES["packed of 8 bits"], (64, 64), np.random.default_rng(1))
    tensors = load_file(folder / WEIGHTS)
    del tensors[f"{PRODUCT}weight_zero_point"]
    tensors |= {PRODUCT + part: tensor for part, tensor in stored(CASES["packed of 8 bits"], eight).items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    np.testing.assert_array_equal(open_checkpoint(folder).tensor(f"{PRODUCT}weight").data, eight.weight.numpy())


# -- what is refused ----------------------------------------------------------------------------------------------

PRODUCT = "model.layers.1.self_attn.o_proj."
Change = Callable[[dict[str, torch.Tensor]], object]


def cut(part: str, dim: int) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensor = tensors[PRODUCT + part]
        tensors[PRODUCT + part] = tensor.narrow(dim, 0, tensor.shape[dim] - 1).contiguous()

    return change


def replaced(part: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda tensors: tensors.update({PRODUCT + part: make(tensors[PRODUCT + part]).contiguous()})


def missing(part: str) -> Change:
    return lambda tensors: tensors.pop(PRODUCT + part)


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor[-1, -1] = float("nan")
    return tensor


DAMAGES: dict[str, tuple[str, Change, str]] = {
    "gptq without a group of codes": ("gptq", cut("qweight", 0), "qweight"),
    "gptq without a group of scales": ("gptq symmetric", cut("scales", 0), "scales"),
    "gptq without a group of zeros": ("gptq symmetric", cut("qzeros", 0), "qzeros"),
    "gptq without scales": ("gptq", missing("scales"), "scales' is missing"),
    "gptq without codes": ("gptq", missing("qweight"), "missing"),
    "gptq with NaN": ("gptq", replaced("scales", with_nan), "NaN"),
    "gptq with scales as numbers": ("gptq", replaced("scales", lambda t: t.int()), "I32"),
    "awq without a word": ("awq", cut("qweight", 1), "qweight"),
    "awq without scales": ("awq", missing("scales"), "scales' is missing"),
    "awq with NaN": ("awq", replaced("scales", with_nan), "NaN"),
    "packed without a group": ("packed symmetric", cut("weight_scale", 1), "weight_scale"),
    "packed with infinity": ("packed", replaced("weight_scale", lambda t: t / 0), "infinity"),
    "packed zeros of another shape": ("packed", cut("weight_zero_point", 0), "weight_zero_point"),
    "int8 without scales": ("int8", missing("weight_scale"), "weight_scale' is missing"),
    "int8 without a group": ("int8 by row", cut("weight_scale", 1), "weight_scale"),
    "int8 without an input": ("int8", cut("weight", 1), "o_proj.weight"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_codes_are_named(damage: str, tmp_path: Path) -> None:
    case, change, message = DAMAGES[damage]
    folder, _, _ = save_both(CASES[case], tmp_path)
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(DamagedModelError, match=message):
        open_checkpoint(folder).quantised(f"{PRODUCT}weight")


def changed(case: str, **values: object) -> dict[str, object]:
    return CASES[case].config | values


def weights_changed(case: str, **values: object) -> dict[str, object]:
    config = copy.deepcopy(CASES[case].config)
    config["config_groups"]["group_0"]["weights"] |= values  # type: ignore[index]
    return config


CONFIGS: dict[str, tuple[dict[str, object], type[ModelError], str]] = {
    "group of 48": (changed("gptq", group_size=48), UnsupportedModelError, "groups of 48"),
    "group of 0": (changed("gptq", group_size=0), UnsupportedModelError, "groups of 0"),
    "group that does not divide": (changed("gptq", group_size=96), UnsupportedModelError, "64 inputs in groups of 96"),
    "group as text": (changed("awq", group_size="128"), DamagedModelError, "group_size"),
    "3 bits": (changed("gptq", bits=3), UnsupportedModelError, "3 bits"),
    "8 bits of 4": (changed("gptq", bits=8), DamagedModelError, "qweight"),
    "marlin": (changed("gptq", checkpoint_format="marlin"), UnsupportedModelError, "marlin.*--engine vllm"),
    "dynamic": (changed("gptq", dynamic={"-:.*down.*": {}}), UnsupportedModelError, "dynamic"),
    "gemv": (changed("awq", version="gemv"), UnsupportedModelError, "gemv"),
    "awq without zero points": (changed("awq", zero_point=False), UnsupportedModelError, "no zero points"),
    "awq of 3 bits": (changed("awq", bits=3), UnsupportedModelError, "3 bits"),
    "fp8": ({"quant_method": "fp8"}, DamagedModelError, "no quantised tensors"),
    "float-quantized": (changed("int8", format="float-quantized"), UnsupportedModelError, "'int' in 8 bits by"),
    "naive-quantized": (changed("int8", format="naive-quantized"), UnsupportedModelError, "naive-quantized"),
    "floats of 8 bits": (weights_changed("int8", type="float"), UnsupportedModelError, "'float' in 8 bits"),
    "by tensor": (weights_changed("int8", strategy="tensor"), UnsupportedModelError, "'tensor'"),
    "blocks": (weights_changed("packed", group_size=16), UnsupportedModelError, "groups of 16"),
    "no groups": (changed("packed", config_groups={}), DamagedModelError, "config_groups"),
    "groups as text": (changed("packed", config_groups={"a": "b"}), DamagedModelError, "config_groups"),
    "rotated": (changed("packed", transform_config={"config_groups": {"R1": {}}}), UnsupportedModelError, "transform"),
    "exl2": ({"quant_method": "exl2", "bits": 4.0}, UnsupportedModelError, "TabbyAPI"),
    "exl3": ({"quant_method": "exl3", "bits": 3.0}, UnsupportedModelError, r"TabbyAPI \(--engine tabbyapi\)"),
    "method as a number": ({"quant_method": 3}, DamagedModelError, "quant_method"),
    "floats": (changed("awq"), DamagedModelError, "no quantised tensors"),
}
BASES = {
    "awq": "awq",
    "pack-quantized": "packed",
    "int-quantized": "int8",
    "float-quantized": "int8",
    "naive-quantized": "int8",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_that_are_refused(name: str, tmp_path: Path) -> None:
    config, error, message = CONFIGS[name]
    base = BASES.get(str(config.get("format", config["quant_method"])), "gptq")
    coded, floats, _ = save_both(CASES[base], tmp_path)
    folder = floats if name == "floats" else coded
    edit_config(folder, quantization_config=config)
    with pytest.raises(error, match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize(("case", "part"), [("gptq", "g_idx"), ("packed", "weight_g_idx")])
def test_inputs_in_another_order_are_refused_and_another_engine_is_named(case: str, part: str, tmp_path: Path) -> None:
    folder, _, _ = save_both(CASES[case], tmp_path)
    edit_config(folder, quantization_config=CASES[case].config | {"desc_act": True})
    tensors = load_file(folder / WEIGHTS)
    tensors[PRODUCT + part] = torch.arange(64, dtype=torch.int32) // 64
    save_file(tensors, folder / WEIGHTS)
    assert open_checkpoint(folder).quantised(f"{PRODUCT}weight")  # the plain order
    tensors[PRODUCT + part] = torch.arange(64, dtype=torch.int32) % 2
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(UnsupportedModelError, match=r"desc_act.*--engine vllm"):
        open_checkpoint(folder)
