"""What each layer of a model keeps: shapes as published models have them, and as the files say it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.model_files.kv_layers import KvLayers, KvShape, from_config, from_gguf
from slipstream.predict.sizes import KvPolicy, Sizes, kv_bytes

LLAMA_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096,
}  # fmt: skip
GEMMA_3_27B = {
    "model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
    "head_dim": 128, "hidden_size": 5376, "sliding_window": 1024,
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip
OPENELM_HEADS = [3, 3, 3, 3, 4, 4, 4, 5]
OPENELM = {
    "model_type": "openelm", "num_transformer_layers": 8, "num_kv_heads": OPENELM_HEADS, "head_dim": 64,
    "model_dim": 1280,
}  # fmt: skip


def shape(values: dict[str, Any]) -> KvShape:
    found = from_config(values)
    assert found is not None
    return found


def numbers(found: KvShape, tokens: int) -> int:
    """Cached numbers, with windows."""
    sizes = Sizes("m", 1, 1, 1, 1, 1, kv_layers=found.layers)
    return kv_bytes(sizes, tokens, 1.0)


def test_a_plain_model_keeps_the_same_everywhere() -> None:
    assert shape(LLAMA_8B) == KvShape((KvLayers(32, 2 * 8 * 128),))


def test_gemma_3_has_a_window_in_five_of_six_layers() -> None:
    found = shape(GEMMA_3_27B)
    assert not found.is_bound
    assert sorted((layer.num_layers, layer.window) for layer in found.layers) == [(10, 0), (52, 1024)]
    assert numbers(found, 131072) == (10 * 131072 + 52 * 1024) * 2 * 16 * 128


@pytest.mark.parametrize(("every", "full"), [(2, 31), (4, 15), (None, 10)])
def test_the_pattern_of_the_file_goes_first(every: int | None, full: int) -> None:
    values = GEMMA_3_27B | ({"sliding_window_pattern": every} if every else {})
    assert sum(layer.num_layers for layer in shape(values).layers if not layer.window) == full


def test_listed_layers_go_before_everything() -> None:
    assert numbers(shape(GPT_OSS_20B), 8192) == (12 * 8192 + 12 * 128) * 2 * 8 * 64


def test_mistral_has_a_window_in_all_layers_and_qwen_only_if_it_says_so() -> None:
    mistral = LLAMA_8B | {"model_type": "mistral", "sliding_window": 4096}
    assert [layer.window for layer in shape(mistral).layers] == [4096]
    qwen = LLAMA_8B | {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
    assert [layer.window for layer in shape(qwen).layers] == [0]
    mixed = qwen | {"use_sliding_window": True, "max_window_layers": 28}
    assert sorted((layer.num_layers, layer.window) for layer in shape(mixed).layers) == [(4, 4096), (28, 0)]


def test_an_unknown_model_with_a_window_is_an_upper_bound() -> None:
    found = shape(LLAMA_8B | {"model_type": "new", "sliding_window": 4096})
    assert found.is_bound and [layer.window for layer in found.layers] == [0]
    assert shape(LLAMA_8B | {"mamba_d_state": 16}).is_bound


def test_layers_without_attention_keep_nothing() -> None:
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 8
    assert numbers(shape(LLAMA_8B | {"layer_types": kinds}), 10) == 8 * 2 * 8 * 128 * 10
    hybrid = LLAMA_8B | {"hybrid_override_pattern": "M-M*" * 8}
    assert numbers(shape(hybrid), 10) == 8 * 2 * 8 * 128 * 10


def test_mla_keeps_one_row_for_all_heads() -> None:
    """576 numbers a token and layer, 57 times less than the heads would."""
    found = shape(DEEPSEEK_V3)
    assert found.layers == (KvLayers(61, 576, 0, 128 * (128 + 64 + 128)),)
    sizes = Sizes("m", 1, 1, 1, 1, 1, kv_layers=found.layers)
    assert kv_bytes(sizes, 1) == 61 * 576 * 2
    assert kv_bytes(sizes, 1, policy=KvPolicy(keeps_latent=False)) == 61 * 40960 * 2


def test_heads_by_layer() -> None:
    assert numbers(shape(OPENELM), 1) == 2 * 64 * sum(OPENELM_HEADS)
    blocks = [{"attention": {"n_heads_in_group": 4}}, {"attention": {"no_op": True}}, {"attention": {}}]
    nemotron = {"num_hidden_layers": 3, "num_attention_heads": 32, "hidden_size": 4096, "block_configs": blocks}
    assert numbers(shape(nemotron), 1) == 2 * 128 * (8 + 0 + 32)


@pytest.mark.parametrize("wrong", [{}, {"num_hidden_layers": "32"}, {"num_hidden_layers": 10**9, "head_dim": 1}])
def test_what_the_file_does_not_say_is_unknown(wrong: dict[str, Any]) -> None:
    assert from_config(wrong) is None


# -- GGUF


def gguf(architecture: str, **values: Any) -> KvShape:
    base = {"block_count": 6, "embedding_length": 1024, "attention.head_count": 8, "attention.head_count_kv": 4}
    names = {key.replace("__", "."): value for key, value in values.items()}
    found = from_gguf({f"{architecture}.{key}": value for key, value in (base | names).items()}, architecture)
    assert found is not None
    return found


def test_gguf_windows_follow_llama_cpp() -> None:
    assert [layer.window for layer in gguf("gemma3", attention__sliding_window=512).layers] == [512, 0]
    assert gguf("gemma3", attention__sliding_window=512).layers[1].num_layers == 1
    flags = np.array([True, True, False, True, True, False])
    stated = gguf("gemma3n", attention__sliding_window=512, attention__sliding_window_pattern=flags)
    assert sorted((layer.num_layers, layer.window) for layer in stated.layers) == [(2, 0), (4, 512)]
    assert [layer.window for layer in gguf("llama", attention__sliding_window=4096).layers] == [0]  # it ignores it
    assert gguf("brand-new", attention__sliding_window=512).is_bound


def test_gguf_heads_by_layer_and_mla() -> None:
    heads = gguf("openelm", attention__head_count_kv=np.array([3, 3, 4, 4, 5, 0], np.int32))
    assert numbers(heads, 1) == 2 * 128 * 19
    mla = gguf(
        "deepseek2", attention__head_count_kv=1, attention__key_length=576, attention__value_length=512,
        attention__key_length_mla=192,
    )  # fmt: skip
    assert numbers(mla, 1) == 6 * 576
    older = gguf("deepseek2", attention__head_count_kv=8, attention__key_length=192, attention__value_length=128)
    assert numbers(older, 1) == 6 * 8 * 320


def test_an_engine_without_windows_keeps_the_whole_context() -> None:
    sizes = Sizes("m", 1, 1, 1, 1, 1, kv_layers=(KvLayers(10, 100, 1024),))
    assert kv_bytes(sizes, 4096, 1.0) == 10 * 100 * 1024
    assert kv_bytes(sizes, 4096, 1.0, KvPolicy(window_margin=512)) == 10 * 100 * 1536
    assert kv_bytes(sizes, 4096, 1.0, KvPolicy(keeps_windows=False)) == 10 * 100 * 4096
