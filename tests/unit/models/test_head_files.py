from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from head_oracle import HeadOracle, to_torch
from slipstream.errors import DamagedModelError, ModelError, ModelNotFoundError, UnsupportedModelError, UsageError
from slipstream.models import open_checkpoint
from slipstream.models.checkpoint import RawTensor
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.draft_heads.export import HeadNotes, save_head
from slipstream.models.draft_heads.files import HeadCheckpoint, check_finite, check_head_for, open_head
from slipstream.models.draft_heads.kinds import kind_in_config
from slipstream.models.draft_heads.layouts import OUTPUT_BIAS, head_tensors
from slipstream.models.rope import Llama3Scaling, llama3_divisors
from tiny_heads import (
    HEAD,
    TARGET,
    original_tensors,
    original_values,
    random_ids,
    random_tensors,
    save_original,
    save_tiny,
)

RECORDED = Path(__file__).parents[2] / "data" / "heads"
LLAMA3 = llama3_divisors(Llama3Scaling(8.0, 1.0, 4.0, 64), TARGET.rope_theta, TARGET.head_dim)
VARIANTS: dict[str, HeadConfig] = {
    "plain": HEAD,
    "all ids": replace(HEAD, draft_vocab_size=48),
    "own embedding": replace(HEAD, own_embedding=True),
    "each feature normed": replace(HEAD, feature_norm="each", norm_output=True),
    "features normed": replace(HEAD, feature_norm="all", norm_before_residual=True),
    "two layers": replace(HEAD, feature_layers=(1, 8)),
    "default layers": replace(HEAD, feature_layers=()),
    "qk norm": replace(HEAD, layer=replace(HEAD.layer, architecture="qwen3", qk_norm=True)),
    "bias": replace(HEAD, layer=replace(HEAD.layer, qkv_bias=True)),
    "llama3 rope": replace(HEAD, layer=replace(HEAD.layer, rope_divisors=LLAMA3)),
    "wider target": replace(HEAD, target_hidden_size=32, own_embedding=True),
    "nothing stated": replace(HEAD, trained_context=None, target=None),
}


def opened(folder: Path) -> HeadCheckpoint:
    return open_head(folder, folder.name)


# --- what is written reads back


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_saved_head_reads_back(tmp_path: Path, variant: str) -> None:
    config = VARIANTS[variant]
    head = opened(save_tiny(tmp_path / "head", config))
    assert head.name == "head"
    assert replace(head.config, layer=replace(head.config.layer, rope_divisors=None)) == replace(
        config, layer=replace(config.layer, rope_divisors=None)
    )
    assert head.config.layer.inverse_frequencies() == pytest.approx(config.layer.inverse_frequencies())
    for name, tensor in random_tensors(config).items():
        assert name in head
        assert np.array_equal(head.tensor(name).data, tensor.data), name
    assert head.token_ids().tolist() == random_ids(config).tolist()
    assert head.weight_bytes() >= 4 * sum(int(np.prod(shape)) for shape in head_tensors(config).values())


def test_other_families_are_saved_as_llama(tmp_path: Path) -> None:
    """The layout has llama and qwen3 only; the layer is the same."""
    config = replace(HEAD, layer=replace(HEAD.layer, architecture="qwen2", qkv_bias=True))
    assert opened(save_tiny(tmp_path / "head", config)).config.layer.architecture == "llama"


def test_weights_are_rounded_to_bfloat16_unless_asked(tmp_path: Path) -> None:
    save_head(tmp_path / "head", HEAD, random_tensors(HEAD), random_ids(HEAD))
    head = opened(tmp_path / "head")
    wanted = to_torch(random_tensors(HEAD)["fc.weight"]).bfloat16().float()
    assert head.tensor("fc.weight").kind == "BF16" and torch.equal(to_torch(head.tensor("fc.weight")), wanted)


def test_notes_and_card_are_saved(tmp_path: Path) -> None:
    notes = HeadNotes("LlamaForCausalLM", draft_length=6, training={"seed": 3}, card="# A head\n")
    folder = save_tiny(tmp_path / "head", notes=notes)
    values = json.loads((folder / "config.json").read_text())
    assert values["slipstream"] == {"trained_context": 128, "training": {"seed": 3}}
    assert values["speculators_config"]["verifier"]["architectures"] == ["LlamaForCausalLM"]
    assert values["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 6
    assert (folder / "README.md").read_text() == "# A head\n"


def with_nan(tensors: dict[str, RawTensor]) -> dict[str, RawTensor]:
    values = tensors["norm.weight"].data.copy()
    values[3] = np.nan
    return tensors | {"norm.weight": RawTensor("F32", values)}


@pytest.mark.parametrize(
    ("tensors", "ids", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "fc.weight"}, random_ids(HEAD), "fc.weight"),
        (lambda t: t | {"norm.weight": t["fc.weight"]}, random_ids(HEAD), "norm.weight"),
        (with_nan, random_ids(HEAD), "NaN"),
        (lambda t: t, None, "expected 20 ids"),
        (lambda t: t, np.arange(5), "expected 20 ids"),
        (lambda t: t, np.arange(20) + 40, "not below 48"),
        (lambda t: t, np.zeros(20, np.int64), "more than once"),
    ],
)
def test_a_head_that_would_not_read_back_is_not_saved(
    tmp_path: Path, tensors: Callable[[dict[str, RawTensor]], dict[str, RawTensor]], ids: Any, message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        save_head(tmp_path / "head", HEAD, tensors(random_tensors(HEAD)), ids)
    assert ".partial" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_kept(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="already exists"):
        save_head(tmp_path, HEAD, random_tensors(HEAD), random_ids(HEAD))


# --- what others wrote


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_drafts_like_the_package_that_wrote_it(family: str) -> None:
    """Written and run by speculators 0.9.0: `tools/check_speculators.py --record`."""
    head = opened(RECORDED / family)
    given_to_it = json.loads((RECORDED / family / "drafted.json").read_text())
    features = torch.tensor(given_to_it["features"])
    wanted = torch.tensor(given_to_it["logits"])
    found = HeadOracle.of(head).draft_logits(features, torch.tensor(given_to_it["next_tokens"]), len(wanted))
    assert torch.allclose(found, wanted, atol=1e-4)
    assert head.config.target == "example/target" and head.config.feature_layers == (1, 2, 3)
    assert head.config.layer.qk_norm == (family == "qwen3")


@pytest.mark.parametrize("layer", ["midlayer.", "layers.0."])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_the_original_layout(tmp_path: Path, layer: str, prefix: str) -> None:
    head = opened(save_original(tmp_path, tensors=original_tensors(layer=layer, prefix=prefix)))
    assert head.config == replace(HEAD, feature_layers=(), trained_context=None, target=None)
    assert check_head_for(head, TARGET).feature_layers == (2, 4, 5)
    for name, tensor in random_tensors(HEAD).items():
        assert np.array_equal(head.tensor(name).data, tensor.data), name
    assert head.token_ids().tolist() == random_ids(HEAD).tolist()


def test_both_layouts_draft_the_same(tmp_path: Path) -> None:
    embedding, features = torch.randn(48, 16), torch.randn(6, 48)
    heads = [opened(save_original(tmp_path / "a")), opened(save_tiny(tmp_path / "b"))]
    drafts = [HeadOracle.of(head, embedding).draft(features, torch.arange(6), 4) for head in heads]
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}, (2, 4, 5)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}, (2, 4, 5)),  # counted from 0, outputs
        ({"eagle_config": {"use_aux_hidden_state": True}}, ()),
    ],
)
def test_feature_layers_are_counted_in_one_way(tmp_path: Path, values: dict, layers: tuple[int, ...]) -> None:
    assert opened(save_original(tmp_path, original_values() | values)).config.feature_layers == layers


def test_options_of_the_original_layout(tmp_path: Path) -> None:
    config = replace(HEAD, own_embedding=True, feature_norm="all", feature_layers=(1, 2), target_hidden_size=32)
    nested = {"norm_before_fc": True, "eagle_aux_hidden_state_layer_ids": [0, 1]}
    values = original_values(config) | {"eagle_config": nested, "target_hidden_size": 32, "attention_bias": False}
    head = opened(save_original(tmp_path, values, original_tensors(config)))
    assert head.config == replace(config, trained_context=None, target=None)


def test_what_only_training_uses_is_left_out(tmp_path: Path) -> None:
    more = {"verifier_norm.weight": torch.ones(16), "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    head = opened(save_original(tmp_path, tensors=original_tensors() | more))
    assert "verifier_norm.weight" not in head and "d2t" not in head


def test_other_types_of_the_id_map(tmp_path: Path) -> None:
    tensors = original_tensors()
    changed = tensors | {"d2t": tensors["d2t"].int(), "t2d": tensors["t2d"].long()}
    assert opened(save_original(tmp_path, tensors=changed)).token_ids().tolist() == random_ids(HEAD).tolist()


def test_flags_of_the_map_may_be_left_out(tmp_path: Path) -> None:
    tensors = original_tensors()
    del tensors["t2d"]
    assert opened(save_original(tmp_path, tensors=tensors)).token_ids().tolist() == random_ids(HEAD).tolist()


# --- refusals


def edit_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")

    return edit


def edit_config(**values: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return edit


def edit_layer(**values: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["transformer_layer_config"] |= values
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def cut(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def twice(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"][1] = tensors["d2t"][0] - 1


def out_of_range(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"][-1] = 1000


def negative(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"][0] = -1


def flags_differ(tensors: dict[str, torch.Tensor]) -> None:
    tensors["t2d"] = ~tensors["t2d"]


DAMAGE: dict[str, tuple[Callable[[Path], None], type[ModelError], str]] = {
    "truncated": (cut, DamagedModelError, "truncated"),
    "no tensor": (edit_tensors(lambda t: t.pop("norm.weight")), DamagedModelError, "norm.weight"),
    "no layer norm": (edit_tensors(lambda t: t.pop("layers.0.hidden_norm.weight")), DamagedModelError, "hidden_norm"),
    "shape": (edit_tensors(lambda t: t.update({"fc.weight": t["fc.weight"].T})), DamagedModelError, "fc.weight"),
    "features": (edit_config(eagle_aux_hidden_state_layer_ids=[1, 2]), DamagedModelError, "fc.weight"),
    "ids twice": (edit_tensors(twice), DamagedModelError, "more than once"),
    "id too large": (edit_tensors(out_of_range), DamagedModelError, "the id 1019"),
    "id below 0": (edit_tensors(negative), DamagedModelError, "the id -1"),
    "flags": (edit_tensors(flags_differ), DamagedModelError, "disagree on 48 ids"),
    "no map": (edit_tensors(lambda t: t.pop("d2t")), DamagedModelError, "d2t is missing"),
    "short map": (edit_tensors(lambda t: t.update(d2t=t["d2t"][:5])), DamagedModelError, "shape"),
    "map of floats": (edit_tensors(lambda t: t.update(d2t=t["d2t"].float())), UnsupportedModelError, "F32"),
    "weights of integers": (
        edit_tensors(lambda t: t.update({"norm.weight": t["norm.weight"].int()})), UnsupportedModelError, "I32",
    ),
    "draft vocabulary": (edit_config(draft_vocab_size=100), DamagedModelError, "draft_vocab_size of 100"),
    "layers": (edit_config(eagle_aux_hidden_state_layer_ids=[2, 2, 2]), DamagedModelError, "layer_ids"),
    "layers as text": (edit_config(eagle_aux_hidden_state_layer_ids="2,3"), DamagedModelError, "layer_ids"),
    "two norms": (edit_config(norm_before_fc=True, fc_norm=True), DamagedModelError, "at most one"),
    "verifier": (edit_config(transformer_layer_config=3), DamagedModelError, "expected an object"),
    "two decoder layers": (edit_layer(num_hidden_layers=2), UnsupportedModelError, "2 layers"),
    "window": (edit_layer(layer_types=["sliding_attention"]), UnsupportedModelError, "sliding window"),
    "rope": (edit_layer(rope_scaling={"rope_type": "yarn", "factor": 4.0}), UnsupportedModelError, "yarn"),
    "family": (edit_layer(model_type="deepseek_v3"), UnsupportedModelError, "deepseek_v3"),
    "quantised": (edit_layer(quantization_config={"quant_method": "fp8"}), UnsupportedModelError, "fp8"),
    "another tensor": (edit_tensors(lambda t: t.update(gate=torch.ones(1))), UnsupportedModelError, "'gate'"),
    "bias": (edit_tensors(lambda t: t.update({OUTPUT_BIAS: torch.ones(16)})), UnsupportedModelError, "output"),
    "last state": (edit_config(eagle_config={"use_aux_hidden_state": False}), UnsupportedModelError, "last hidden"),
    "other width": (edit_config(target_hidden_size=8), DamagedModelError, "embed_tokens"),
    "no config": (lambda folder: (folder / "config.json").unlink(), ModelNotFoundError, "config.json"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), ModelNotFoundError, "safetensors"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_head_is_refused(tmp_path: Path, damage: str) -> None:
    change, error, message = DAMAGE[damage]
    change(save_tiny(tmp_path / "head"))
    with pytest.raises(error, match=message):
        opened(tmp_path / "head")


def test_a_zero_bias_on_the_output_is_no_bias(tmp_path: Path) -> None:
    edit_tensors(lambda t: t.update({OUTPUT_BIAS: torch.zeros(16)}))(save_tiny(tmp_path / "head"))
    assert OUTPUT_BIAS not in opened(tmp_path / "head")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_found(tmp_path: Path, dtype: torch.dtype, value: float) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"].to(dtype)
        check_finite(opened(tmp_path / "head"))
        tensors["lm_head.weight"][-1, -1] = value

    edit_tensors(change)(save_tiny(tmp_path / "head"))
    with pytest.raises(DamagedModelError, match=r"lm_head\.weight.*NaN"):
        check_finite(opened(tmp_path / "head"))


OTHER_KINDS: dict[str, dict[str, Any]] = {
    "Medusa": {"medusa_num_heads": 4, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"},
    "Hydra": {"hydra_num_heads": 4, "hydra_num_layers": 1},
    "MTP": {"architectures": ["DeepseekV3ForCausalLMNextN"], "model_type": "deepseek_v3"},
    "P-EAGLE": original_values() | {"parallel_drafting": True},
    "DFlash": {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dflash_config": {"mask_token_id": 1}},
    "EAGLE-1 or EAGLE-2": {"architectures": ["EagleLlamaForCausalLM"], "model_type": "eagle"},
    "MLP speculator": {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"},
    "'xpress'": {"speculators_model_type": "xpress"},
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_kinds_of_heads_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"of the kind {kind}; EAGLE-3 is supported.*slipstream train"):
        opened(save_original(tmp_path, OTHER_KINDS[kind]))


@pytest.mark.parametrize("type", ["peagle", "dflash", "dflash2", "mtp", "eagle", "dspark"])
def test_other_types_of_speculators_are_refused(tmp_path: Path, type: str) -> None:
    edit_config(speculators_model_type=type)(save_tiny(tmp_path / "head"))
    with pytest.raises(UnsupportedModelError, match="of the kind"):
        opened(tmp_path / "head")


@pytest.mark.parametrize(
    ("kind", "tensors"),
    [
        ("Medusa", {"0.0.linear.weight": torch.ones(4, 4)}),
        ("MTP", {"mtp.layers.0.fc.weight": torch.ones(4, 4)}),
        ("P-EAGLE", original_tensors() | {"mask_hidden": torch.ones(16)}),
        ("EAGLE-1 or EAGLE-2", {"fc.weight": torch.ones(16, 32), "layers.0.mlp.up_proj.weight": torch.ones(24, 16)}),
    ],
)
def test_kinds_are_known_by_their_tensors(tmp_path: Path, kind: str, tensors: dict[str, torch.Tensor]) -> None:
    """Where the configuration has only the family of the target."""
    values = {key: value for key, value in original_values().items() if key != "draft_vocab_size"}
    with pytest.raises(UnsupportedModelError, match=kind):
        opened(save_original(tmp_path, values | {"architectures": ["LlamaForCausalLM"]}, tensors))


def test_a_head_named_like_its_target_is_known_by_its_tensors(tmp_path: Path) -> None:
    assert opened(save_original(tmp_path, original_values() | {"architectures": ["LlamaForCausalLM"]})).config


def test_a_whole_model_is_no_head(folder: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="has no draft head"):
        opened(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
        {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_nextn_predict_layers": 1},
        {"architectures": ["Eagle2_5_VLForConditionalGeneration"], "model_type": "eagle_2_5_vl"},
        {"architectures": ["LLaDAModelLM"], "model_type": "llada", "mask_token_id": 126336},
        {"architectures": None, "model_type": 3},
    ],
)
def test_whole_models_are_not_taken_for_heads(values: dict[str, Any]) -> None:
    assert kind_in_config(values) is None


def test_pickled_weights_are_refused_with_the_command_that_converts_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(original_values()))
    torch.save(original_tensors(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="pickled") as caught:
        opened(tmp_path)
    program = str(caught.value).split('python -c "')[1].rstrip('"')
    exec(program, {})
    assert opened(tmp_path).token_ids().tolist() == random_ids(HEAD).tolist()


@pytest.mark.parametrize("save", [save_tiny, save_original])
def test_a_head_is_no_model(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"is a draft head \(EAGLE-3\).*--drafter head"):
        open_checkpoint(save(tmp_path / "head"))


# --- a head and its target


def test_a_head_fits_its_target(tmp_path: Path) -> None:
    head = opened(save_tiny(tmp_path / "head"))
    assert check_head_for(head, TARGET) == head.config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 32}, "a hidden size of 16, the target has 32"),
        ({"vocab_size": 50}, "a vocabulary of 48, the target has 50"),
        ({"num_layers": 4}, "after layers 2, 4, 5, the target has 4"),
    ],
)
def test_a_head_for_another_target_is_refused(tmp_path: Path, change: dict[str, int], message: str) -> None:
    head = opened(save_tiny(tmp_path / "head"))
    with pytest.raises(UnsupportedModelError, match=f"{message}.*made for example/target"):
        check_head_for(head, replace(TARGET, **change))


def test_the_last_hidden_state_is_a_feature_too(tmp_path: Path) -> None:
    head = opened(save_tiny(tmp_path / "head", replace(HEAD, feature_layers=(0, 4, 8))))
    assert check_head_for(head, TARGET).feature_layers == (0, 4, 8)


def test_default_layers_need_a_deep_enough_target(tmp_path: Path) -> None:
    head = opened(save_original(tmp_path))
    with pytest.raises(UnsupportedModelError, match="the target has 4"):
        check_head_for(head, replace(TARGET, num_layers=4))


# --- anything else


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_never_raise_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    if not (tmp_path / "head").exists():
        save_tiny(tmp_path / "head")
    name = data.draw(st.sampled_from(["config.json", "model.safetensors"]))
    content = bytearray((tmp_path / "head" / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content), 3000) - 1))] = data.draw(st.integers(0, 255))
    changed = tmp_path / "changed"
    changed.mkdir(exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        (changed / file).write_bytes(content if file == name else (tmp_path / "head" / file).read_bytes())
    with suppress(ModelError):
        check_finite(opened(changed))
