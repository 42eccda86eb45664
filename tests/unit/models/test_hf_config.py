from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_files import SIZES
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.config import DecoderConfig
from slipstream.models.hf.config import config_from_hf

PATH = Path("config.json")
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(family: str = "Llama", **values: Any) -> DecoderConfig:
    """The config of a family as transformers writes it, with values changed in the JSON."""
    config = getattr(transformers, f"{family}Config")(**(SIZES | {"architectures": [f"{family}ForCausalLM"]}))
    return config_from_hf(config.to_dict() | values, PATH)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_families(family: str) -> None:
    config = read(family)
    assert config.architecture == family.lower()
    assert config.head_dim == (128 if family == "Qwen3" else 16)
    assert config.qkv_bias == (family == "Qwen2") and config.qk_norm == (family == "Qwen3")
    assert config.sliding_window is None and not config.tied_head  # 4096 is beyond the context of 128


@pytest.mark.parametrize(
    "rope",
    [
        LLAMA3,
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        {"rope_type": "default", "rope_theta": 1e6},
    ],
)
@pytest.mark.parametrize("spelling", ["new", "old"])
def test_rope_frequencies_are_those_of_transformers(rope: dict[str, Any], spelling: str) -> None:
    if spelling == "new":
        config = read(head_dim=64, rope_parameters=rope)
    else:
        config = read(head_dim=64, rope_parameters=None, rope_theta=rope["rope_theta"], rope_scaling=rope)
    reference = transformers.LlamaConfig(**SIZES, head_dim=64, rope_parameters=rope)
    if rope["rope_type"] == "default":
        expected = rope["rope_theta"] ** (-torch.arange(0, 64, 2) / 64)
    else:
        expected, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](reference, "cpu")
        assert scale == 1.0
    torch.testing.assert_close(torch.tensor(config.inverse_frequencies()), expected.float(), rtol=1e-5, atol=0)


def test_the_old_name_of_the_rope_type() -> None:
    config = read(rope_parameters=None, rope_theta=1e4, rope_scaling={"type": "linear", "factor": 2})
    assert config.rope_divisors == (2.0,) * 8 and config.rope_theta == 1e4


def test_a_silent_config_takes_the_family_defaults() -> None:
    bare = {key: SIZES[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    bare |= {"num_attention_heads": 4, "model_type": "llama"}
    config = config_from_hf(bare, PATH)
    assert (config.num_kv_heads, config.head_dim, config.context_length) == (4, 16, 2048)
    assert (config.rope_theta, config.norm_eps, config.tied_head) == (10000.0, 1e-6, False)


def test_sliding_windows() -> None:
    assert read("Mistral", sliding_window=32).sliding_window == 32
    assert read("Mistral", sliding_window=None).sliding_window is None
    assert read("Llama", sliding_window=32).sliding_window is None  # transformers' Llama has none
    assert read("Qwen2", sliding_window=32, use_sliding_window=False).sliding_window is None
    sliding = {"use_sliding_window": True, "sliding_window": 32}
    assert read("Qwen2", **sliding, layer_types=["sliding_attention"] * 2).sliding_window == 32
    assert read("Qwen2", **sliding, layer_types=None, max_window_layers=0).sliding_window == 32


def test_the_window_counts_the_row_itself() -> None:
    mask = transformers.masking_utils.sliding_window_causal_mask_function(3)
    seen = [k for k in range(10) if mask(0, 0, torch.tensor(7), torch.tensor(k))]
    assert len(seen) == 3 and seen[-1] == 7  # what DecoderConfig.sliding_window promises


@pytest.mark.parametrize(
    ("family", "values", "says"),
    [
        ("Llama", {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}, "Gemma2ForCausalLM"),
        ("Llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ("Llama", {"model_type": None, "architectures": None}, "None"),
        ("Llama", {"rope_parameters": LLAMA3 | {"rope_type": "yarn"}}, "yarn"),
        ("Llama", {"rope_parameters": LLAMA3 | {"rope_type": "dynamic"}}, "dynamic"),
        ("Llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("Llama", {"attention_bias": True}, "attention_bias"),
        ("Llama", {"mlp_bias": True}, "mlp_bias"),
        ("Llama", {"hidden_act": "gelu"}, "gelu"),
        ("Llama", {"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ("Qwen2", {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}, "mixes"),
        ("Qwen3", {"use_sliding_window": True, "layer_types": None, "max_window_layers": 1}, "mixes"),
    ],
)
def test_unsupported_values_are_named(family: str, values: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says) as caught:
        read(family, **values)
    assert "engine" in str(caught.value) or "GGUF" in str(caught.value)  # the way out


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": None},
        {"hidden_size": True},
        {"num_attention_heads": 0},
        {"rms_norm_eps": "small"},
        {"rope_parameters": [1]},
        {"rope_parameters": LLAMA3 | {"factor": None}},
        {"rope_parameters": LLAMA3 | {"low_freq_factor": 9.0}},
        {"rope_parameters": LLAMA3 | {"rope_theta": math.inf}},
    ],
)
def test_senseless_values_are_damage(values: dict[str, Any]) -> None:
    with pytest.raises(DamagedModelError, match=r"config\.json"):
        read(**values)
