"""config.json and generation_config.json of a checkpoint: the inverse of hf_config."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.errors import UnsupportedModelError
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.config import DecoderConfig
from slipstream.models.hf.config import FAMILIES, config_from_hf
from slipstream.models.rope import Llama3Scaling, llama3_divisors
from slipstream.models.text.tokenizer import Tokenizer

# GGUF stores the result of llama3's scaling, not its settings. All published models have these two factors and a power
# of two as original context, so the settings are found by trying.
LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR = 1.0, 4.0
ORIGINAL_CONTEXTS = tuple(1 << power for power in range(6, 21))
READ_BY = "5.0.0"  # without a version, transformers warns about bugs of older tokenizers
SAME_DIVISOR = 1e-5  # relative; files store them as float32


def config_json(checkpoint: Checkpoint, torch_dtype: str) -> dict[str, Any]:
    """Raises UnsupportedModelError if config.json can't describe the model."""
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    model_type = _model_type(config)
    values = {
        "architectures": [FAMILIES[model_type].architecture],
        **decoder_json(config, model_type, checkpoint.path),
        "torch_dtype": torch_dtype,
        "use_cache": True,
        "transformers_version": READ_BY,
        **_token_ids(tokenizer),
    }
    _check_says_the_same(values, config, model_type, checkpoint.path)
    return values


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def decoder_json(config: DecoderConfig, model_type: str, path: Path) -> dict[str, Any]:
    """The shape alone. Raises UnsupportedModelError for a rope scaling that config.json can't describe."""
    return {
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied_head,
        **_rope_scaling(path, config),
        **_window(config),
    }


def generation_json(tokenizer: Tokenizer) -> dict[str, Any]:
    return {"_from_model_config": True, **_token_ids(tokenizer)}


def _model_type(config: DecoderConfig) -> str:
    """GGUF calls Mistral's models llama; only Mistral has a sliding window, which tells them apart."""
    return "mistral" if config.architecture == "llama" and config.sliding_window else config.architecture


def _window(config: DecoderConfig) -> dict[str, Any]:
    """Qwen's families use a window in the layers from `max_window_layers` on, and only with use_sliding_window."""
    if config.sliding_window is None:
        return {"sliding_window": None}
    return {"sliding_window": config.sliding_window, "use_sliding_window": True, "max_window_layers": 0}


def _token_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    ends = sorted(tokenizer.eos_ids, key=lambda token_id: (token_id != tokenizer.eos_id, token_id))
    return {"bos_token_id": tokenizer.bos_id, "eos_token_id": ends or None}


def _rope_scaling(path: Path, config: DecoderConfig) -> dict[str, Any]:
    divisors = config.rope_divisors
    if divisors is None or all(d == 1.0 for d in divisors):
        return {}
    if _same(divisors, (divisors[0],) * len(divisors)):
        return {"rope_scaling": {"rope_type": "linear", "factor": divisors[0]}}
    scaling = _llama3_scaling(config, divisors)
    if scaling is None:
        raise UnsupportedModelError(
            f"{path} scales its rotary frequencies in a way that config.json can't describe. Use the model's own "
            "safetensors folder instead."
        )
    return {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    }


def _llama3_scaling(config: DecoderConfig, divisors: tuple[float, ...]) -> Llama3Scaling | None:
    for original in ORIGINAL_CONTEXTS:
        scaling = Llama3Scaling(max(divisors), LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, original)
        if _same(divisors, llama3_divisors(scaling, config.rope_theta, config.head_dim)):
            return scaling
    return None


def _same(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return all(math.isclose(x, y, rel_tol=SAME_DIVISOR) for x, y in zip(a, b, strict=True))


def _check_says_the_same(values: dict[str, Any], config: DecoderConfig, model_type: str, path: Path) -> None:
    """The written configuration must read back as the same model; it would not, for example, with a bias that the
    family does not have.
    """
    wanted = replace(config, architecture=model_type, rope_divisors=None)
    found = replace(config_from_hf(values, path), rope_divisors=None)
    if found != wanted:
        raise UnsupportedModelError(
            f"a {FAMILIES[model_type].architecture} folder can't represent {path}: it has {wanted}, and would be read "
            f"as {found}. Use the model's own safetensors folder instead."
        )
