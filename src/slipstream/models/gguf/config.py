"""GGUF metadata -> DecoderConfig. Raises for unsupported values that change the result, and names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.config import DecoderConfig

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
PERMUTED_ARCHITECTURES = frozenset({"llama", "mistral"})  # llama.cpp interleaves their rotary rows when converting
WAY_OUT = "Use the llama.cpp backend (--backend llamacpp) or another engine."

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What the tensors say where the metadata does not."""

    vocab_size: int
    tied_head: bool
    qkv_bias: bool
    rope_factors: tuple[float, ...] | None  # of rope_freqs.weight


@dataclass(frozen=True, slots=True)
class Metadata:
    """Typed reads; keys of the architecture are passed without its prefix."""

    path: Path
    values: Mapping[str, Any]
    architecture: str

    def required(self, key: str) -> int:
        value = self.optional(key, -1)
        if value == -1:
            raise DamagedModelError(f"{self.path} has no metadata {self.architecture}.{key}. Convert it again.")
        return value

    def optional(self, key: str, default: Number) -> Number:
        value = self.values.get(f"{self.architecture}.{key}", default)
        accepted = (int, float) if isinstance(default, float) else int
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise UnsupportedModelError(
                f"{self.path} has a {type(value).__name__} as {self.architecture}.{key}; expected one number. {WAY_OUT}"
            )
        return value  # type: ignore[return-value]  # an int where a float was asked for is as good

    def text(self, key: str, default: str) -> str:
        value = self.values.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, str):
            raise DamagedModelError(f"{self.path} has a {type(value).__name__} as {self.architecture}.{key}.")
        return value


def architecture_of(path: Path, values: Mapping[str, Any]) -> str:
    """The architecture's name. Raises if it is not of the Llama family."""
    architecture = values.get("general.architecture")
    if not isinstance(architecture, str):
        raise DamagedModelError(f"{path} does not name its architecture (general.architecture). Convert it again.")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{path} is a {architecture!r} model; {', '.join(ARCHITECTURES)} are supported in GGUF. {WAY_OUT}"
        )
    return architecture


def config_from_metadata(path: Path, values: Mapping[str, Any], facts: TensorFacts) -> DecoderConfig:
    """Reads the shape of the decoder. Raises DamagedModelError or UnsupportedModelError."""
    meta = Metadata(path, values, architecture_of(path, values))
    _refuse_unsupported(meta)
    num_heads = meta.required("attention.head_count")
    hidden = meta.required("embedding_length")
    if num_heads < 1:
        raise DamagedModelError(f"{path} has {num_heads} attention heads; expected 1 or more.")
    head_dim = meta.optional("attention.key_length", hidden // num_heads)
    _check_rotary(meta, head_dim)
    context = meta.required("context_length")
    window = meta.optional("attention.sliding_window", 0)
    return DecoderConfig(
        architecture=meta.architecture,
        vocab_size=facts.vocab_size,
        hidden_size=hidden,
        intermediate_size=meta.required("feed_forward_length"),
        num_layers=meta.required("block_count"),
        num_heads=num_heads,
        num_kv_heads=meta.optional("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        context_length=context,
        norm_eps=meta.optional("attention.layer_norm_rms_epsilon", 1e-5),
        rope_theta=meta.optional("rope.freq_base", 10000.0),
        rope_divisors=_rope_divisors(meta, head_dim, facts.rope_factors),
        sliding_window=window if 0 < window < context else None,
        qkv_bias=facts.qkv_bias,
        qk_norm=meta.architecture == "qwen3",
        tied_head=facts.tied_head,
    )


def _refuse_unsupported(meta: Metadata) -> None:
    if meta.optional("expert_count", 0) > 0:
        raise UnsupportedModelError(f"{meta.path} is a mixture of experts, which is not supported. {WAY_OUT}")


def refuse_split(path: Path, values: Mapping[str, Any]) -> None:
    num_parts = values.get("split.count", 0)
    if isinstance(num_parts, int) and num_parts > 1:
        raise UnsupportedModelError(
            f"{path} is one of {num_parts} parts of a split GGUF. "
            "Merge them first: llama-gguf-split --merge FIRST_PART OUTPUT"
        )


def _check_rotary(meta: Metadata, head_dim: int) -> None:
    rotary = meta.optional("rope.dimension_count", head_dim)
    value_dim = meta.optional("attention.value_length", head_dim)
    if rotary != head_dim or value_dim != head_dim:
        raise UnsupportedModelError(
            f"{meta.path} has {rotary} rotary, {head_dim} key and {value_dim} value dimensions per head; all three "
            f"must be equal. {WAY_OUT}"
        )


def _rope_divisors(meta: Metadata, head_dim: int, factors: tuple[float, ...] | None) -> tuple[float, ...] | None:
    kind = meta.text("rope.scaling.type", "none")
    scale = meta.optional("rope.scale_linear", 1.0)  # the old spelling
    if kind == "linear":
        scale = meta.optional("rope.scaling.factor", scale)
    elif kind != "none":
        raise UnsupportedModelError(
            f"{meta.path} uses the rope scaling {kind!r}; none and linear are supported. {WAY_OUT}"
        )
    if scale == 1.0 or scale == 0.0:  # llama.cpp reads 0 as "not set"
        return factors
    return tuple(factor * scale for factor in factors or (1.0,) * (head_dim // 2))
