"""config.json -> DecoderConfig. Raises for unsupported values that change the result, and names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.config import DecoderConfig
from slipstream.models.rope import Llama3Scaling, linear_divisors, llama3_divisors

EXLLAMA_METHODS = ("exl2", "exl3")
QUANTISATION = "quantization_config"
WAY_OUT = "Use the llama.cpp backend or another engine for this model."


@dataclass(frozen=True, slots=True)
class FamilyDefaults:
    """The defaults of transformers for a model type, for values missing in config.json."""

    architecture: str  # the class that `architectures` names
    context_length: int
    num_kv_heads: int | None  # None: as many as heads
    head_dim: int | None = None  # None: hidden / heads
    qkv_bias: bool = False
    qk_norm: bool = False
    window_switch: bool = False  # Qwen: sliding_window counts only with use_sliding_window
    sliding_window: int | None = None


FAMILIES = {
    "llama": FamilyDefaults("LlamaForCausalLM", 2048, None),
    "mistral": FamilyDefaults("MistralForCausalLM", 131072, 8, sliding_window=4096),
    "qwen2": FamilyDefaults("Qwen2ForCausalLM", 32768, 32, qkv_bias=True, window_switch=True, sliding_window=4096),
    "qwen3": FamilyDefaults("Qwen3ForCausalLM", 32768, 32, 128, qk_norm=True, window_switch=True, sliding_window=4096),
}


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed reads of a JSON object; null counts as missing."""

    path: Path
    values: Mapping[str, Any]

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) is not int:
            raise self.wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) not in (int, float):
            raise self.wrong(key, value, "a number")
        return float(value)  # type: ignore[arg-type]  # None was refused above

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if not isinstance(value, bool | None):
            raise self.wrong(key, value, "true or false")
        return bool(value)

    def text(self, key: str, default: str) -> str:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.wrong(key, value, "text")
        return value

    def wrong(self, key: str, value: object, expected: str) -> DamagedModelError:
        return DamagedModelError(f"{self.path} has {key} = {repr(value)[:80]}; expected {expected}.")


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


def check_sizes(values: Mapping[str, Any], path: Path) -> None:
    """Raises DamagedModelError for sizes that no architecture can have. Some have a list, with one for each layer."""
    fields = Fields(path, values)
    for key in _SIZES:
        value = values.get(key)
        if value is not None and not isinstance(value, list) and (type(value) is not int or value < 1):
            raise fields.wrong(key, value, "a whole number of 1 or more")


def config_from_hf(values: Mapping[str, Any], path: Path) -> DecoderConfig:
    """Reads the shape of the decoder. Raises DamagedModelError or UnsupportedModelError.

    `quantization_config` is refused: who can read codes takes it out of `values` first.
    """
    model_type, family = _family(values, path)
    fields = Fields(path, values)
    _refuse_unsupported(fields)
    num_heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    if num_heads < 1:
        raise DamagedModelError(f"{path} has {num_heads} attention heads; expected 1 or more.")
    head_dim = fields.integer("head_dim", family.head_dim or hidden // num_heads)
    context = fields.integer("max_position_embeddings", family.context_length)
    rope = _rope_fields(fields)
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    return DecoderConfig(
        architecture=model_type,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, family, num_heads),
        head_dim=head_dim,
        context_length=context,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_divisors=_rope_divisors(rope, theta, head_dim, context),
        sliding_window=_sliding_window(fields, family, context),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        tied_head=fields.flag("tie_word_embeddings"),
    )


def _family(values: Mapping[str, Any], path: Path) -> tuple[str, FamilyDefaults]:
    fields = Fields(path, values)
    model_type, architectures = fields.text("model_type", ""), values.get("architectures")
    if architectures is not None and not isinstance(architectures, list):
        raise fields.wrong("architectures", architectures, "a list")
    named = architectures[0] if architectures else None
    family = FAMILIES.get(model_type)
    if family is None or named not in (None, family.architecture):
        supported = ", ".join(f.architecture for f in FAMILIES.values())
        raise UnsupportedModelError(
            f"{path} describes a {str(named or model_type or None)[:80]!r} model; {supported} are supported. {WAY_OUT}"
        )
    return model_type, family


def _refuse_unsupported(fields: Fields) -> None:
    quantisation = fields.values.get(QUANTISATION)
    if quantisation is not None and not isinstance(quantisation, dict):
        raise fields.wrong(QUANTISATION, quantisation, "an object")
    if quantisation is not None:
        raise refused_method(fields.path, str(quantisation.get("quant_method", "unknown")))
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"{fields.path} uses the activation {activation!r}; silu is supported. {WAY_OUT}")
    for key in ("attention_bias", "mlp_bias"):
        if fields.flag(key):
            raise UnsupportedModelError(
                f"{fields.path} sets {key}, a bias that is not supported (only Qwen2's bias on q, k and v is). "
                f"{WAY_OUT}"
            )


def refused_method(path: Path, method: str) -> UnsupportedModelError:
    """For a method of quantisation that is not read."""
    engine = "TabbyAPI (--engine tabbyapi)" if method.lower() in EXLLAMA_METHODS else "another engine"
    return UnsupportedModelError(
        f"{path} describes a checkpoint quantised with {method[:40]!r}, which is not supported. Use the unquantised "
        f"checkpoint, a GGUF file of the same model, or {engine}."
    )


def _num_kv_heads(fields: Fields, family: FamilyDefaults, num_heads: int) -> int:
    if "num_key_value_heads" in fields.values:  # in transformers, null means "as many as heads"
        return fields.integer("num_key_value_heads", num_heads)
    return family.num_kv_heads or num_heads


def _sliding_window(fields: Fields, family: FamilyDefaults, context: int) -> int | None:
    """transformers masks keys `sliding_window` and more back, so a row sees that many, itself included."""
    if family.window_switch and not fields.flag("use_sliding_window"):
        return None
    if family.window_switch:
        _refuse_mixed_layers(fields)
    if "sliding_window" in fields.values and fields.values["sliding_window"] is None:
        return None
    if family.sliding_window is None:
        return None
    window = fields.integer("sliding_window", family.sliding_window)
    return window if window < context else None


def _refuse_mixed_layers(fields: Fields) -> None:
    num_layers = fields.integer("num_hidden_layers")
    kinds = fields.values.get("layer_types")
    if isinstance(kinds, list):
        mixed = any(kind != "sliding_attention" for kind in kinds)
    else:
        mixed = fields.integer("max_window_layers", 28) > 0 and num_layers > 0
    if mixed:
        raise UnsupportedModelError(
            f"{fields.path} mixes layers with and without a sliding window, which is not supported. {WAY_OUT}"
        )


def _rope_fields(fields: Fields) -> Fields:
    """transformers 5 writes rope_parameters, with theta inside; older versions write rope_scaling and rope_theta."""
    for key in ("rope_parameters", "rope_scaling"):
        value = fields.values.get(key)
        if isinstance(value, dict):
            return Fields(fields.path, value)
        if value is not None:
            raise fields.wrong(key, value, "an object")
    return Fields(fields.path, {})


def _rope_divisors(rope: Fields, theta: float, head_dim: int, context: int) -> tuple[float, ...] | None:
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(
            f"{rope.path} rotates only a part of each head (partial_rotary_factor), which is not supported. {WAY_OUT}"
        )
    if kind == "default":
        return None
    if kind == "linear":
        return linear_divisors(rope.number("factor"), head_dim)
    if kind != "llama3":
        raise UnsupportedModelError(
            f"{rope.path} uses the rope scaling {kind!r}; default, linear and llama3 are supported. {WAY_OUT}"
        )
    if not 0 < theta < float("inf") or head_dim < 2:
        raise DamagedModelError(
            f"{rope.path} has a rope_theta of {theta} and a head_dim of {head_dim}, which are invalid."
        )
    return llama3_divisors(_llama3_scaling(rope, context), theta, head_dim)


def _llama3_scaling(rope: Fields, context: int) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_context=rope.integer("original_max_position_embeddings", context),
    )
    if scaling.factor <= 0 or not scaling.low_freq_factor < scaling.high_freq_factor:
        raise DamagedModelError(f"{rope.path} has an invalid llama3 rope scaling: {scaling}.")
    return scaling
