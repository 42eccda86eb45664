"""The tensors of a decoder and their shapes. Both readers check a checkpoint when it is opened."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.config import DecoderConfig

Shape = tuple[int, ...]
EMBEDDING = "model.embed_tokens.weight"

# Far above every known model; keeps a malicious header from requesting billions of names.
MAX_LAYERS = 4096
MAX_SIZE = 1 << 26
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)  # derived from the config; old checkpoints contain it


def expected_tensors(config: DecoderConfig) -> dict[str, Shape]:
    """Name and shape of every tensor that a backend needs."""
    hidden = config.hidden_size
    expected = {EMBEDDING: (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tied_head:
        expected["lm_head.weight"] = (config.vocab_size, hidden)
    layer = layer_tensors(config)
    for index in range(config.num_layers):
        expected.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    return expected


def layer_tensors(config: DecoderConfig) -> dict[str, Shape]:
    """Those of one layer, by their names within it."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_rows, hidden),
        "self_attn.k_proj.weight": (kv_rows, hidden),
        "self_attn.v_proj.weight": (kv_rows, hidden),
        "self_attn.o_proj.weight": (hidden, q_rows),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        layer |= {"self_attn.q_proj.bias": (q_rows,), "self_attn.k_proj.bias": (kv_rows,)}
        layer |= {"self_attn.v_proj.bias": (kv_rows,)}
    if config.qk_norm:
        layer |= {
            "self_attn.q_norm.weight": (config.head_dim,),
            "self_attn.k_norm.weight": (config.head_dim,),
        }
    return layer


def check_config(config: DecoderConfig, path: Path) -> None:
    """Raises for numbers that no decoder can have."""
    sizes = {
        "vocab_size": (config.vocab_size, MAX_SIZE),
        "hidden_size": (config.hidden_size, MAX_SIZE),
        "intermediate_size": (config.intermediate_size, MAX_SIZE),
        "number of layers": (config.num_layers, MAX_LAYERS),
        "number of heads": (config.num_heads, MAX_SIZE),
        "number of kv heads": (config.num_kv_heads, MAX_SIZE),
        "head_dim": (config.head_dim, MAX_SIZE),
        "context length": (config.context_length, 1 << 40),
    }
    for name, (value, limit) in sizes.items():
        if not 1 <= value <= limit:
            raise DamagedModelError(f"{path} has a {name} of {str(value)[:40]}; expected 1 to {limit}.")
    _check_heads(config, path)
    for name, number in {"rope theta": config.rope_theta, "norm epsilon": config.norm_eps}.items():
        if not (math.isfinite(number) and number > 0):
            raise DamagedModelError(f"{path} has a {name} of {number}; expected a number above 0.")
    if config.sliding_window is not None and config.sliding_window < 1:
        raise DamagedModelError(f"{path} has a sliding window of {config.sliding_window}; expected 1 or more.")


def _check_heads(config: DecoderConfig, path: Path) -> None:
    if config.num_heads % config.num_kv_heads:
        raise DamagedModelError(
            f"{path} has {config.num_heads} heads and {config.num_kv_heads} kv heads; expected a multiple of the kv "
            "heads."
        )
    if config.head_dim % 2:
        raise DamagedModelError(f"{path} has a head_dim of {config.head_dim}; expected an even number.")
    divisors = config.rope_divisors
    if divisors is None:
        return
    if len(divisors) != config.head_dim // 2:
        raise DamagedModelError(
            f"{path} has {len(divisors)} rope factors; expected {config.head_dim // 2} (head_dim / 2)."
        )
    if not all(math.isfinite(d) and d > 0 for d in divisors):
        raise DamagedModelError(f"{path} has a rope factor that is not a number above 0.")


def check_vocabulary(num_tokens: int, config: DecoderConfig, path: Path) -> None:
    """Every token needs its row of the embedding; rows without a token are padding."""
    if num_tokens > config.vocab_size:
        raise DamagedModelError(
            f"{path} has a tokenizer of {num_tokens} tokens but only {config.vocab_size} embedding rows: tokenizer "
            "and weights are from different models."
        )


def check_tensors(found: Mapping[str, Shape], config: DecoderConfig, path: Path) -> None:
    """Raises if a tensor is missing, has another shape, or does not belong to this architecture."""
    expected = expected_tensors(config)
    check_shapes(found, expected, f"{config.architecture} model", path)
    extra = [name for name in found if name not in expected and not _ignorable(name, config)]
    if extra:
        raise UnsupportedModelError(
            f"{path} has the tensor {extra[0]!r}, which Slipstream does not support for {config.architecture} models; "
            "ignoring it would change the answers. Use another engine for this model."
        )


def check_shapes(found: Mapping[str, Shape], expected: Mapping[str, Shape], what: str, path: Path) -> None:
    """Raises if a tensor is missing or has another shape. `what` they belong to, in words."""
    missing = [name for name in expected if name not in found]
    if missing:
        raise DamagedModelError(
            f"{path}: {len(missing)} of the {len(expected)} tensors of this {what} are missing, first {missing[0]!r}. "
            "The file is incomplete; download it again."
        )
    for name, shape in expected.items():
        if found[name] != shape:
            raise DamagedModelError(f"{path}: the tensor {name!r} has the shape {found[name]}; expected {shape}.")


def _ignorable(name: str, config: DecoderConfig) -> bool:
    return name.endswith(IGNORED_SUFFIXES) or (config.tied_head and name == "lm_head.weight")
