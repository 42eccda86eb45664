"""config.json of a draft head -> HeadConfig, and the names of its tensors, for both layouts of EAGLE-3 heads.

original       the authors' own, also of SpecForge, SGLang and NVIDIA: all values at the top, `midlayer.` tensors
speculators    of the package of that name and of vLLM: the layer's values in `transformer_layer_config`
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.config import DecoderConfig
from slipstream.models.draft_heads.config import FeatureNorm, HeadConfig
from slipstream.models.draft_heads.kinds import stated_target
from slipstream.models.hf.config import FAMILIES, Fields, config_from_hf
from slipstream.models.tensors import IGNORED_SUFFIXES, MAX_LAYERS, Shape, check_config, layer_tensors

LAYER = "layers.0."
OUTPUT_BIAS = f"{LAYER}self_attn.o_proj.bias"  # accepted if it is zero
ID_MAP, IN_DRAFT = "d2t", "t2d"
OWN_KEY = "slipstream"  # of config.json: what neither layout has a place for
_LAYER_PREFIXES = ("midlayer.", "layers.0.")
_OF_TARGET = ("verifier_norm.weight", "verifier_lm_head.weight")  # copies that only training uses
_MAX_FEATURE_LAYERS = 64  # far above the 3 to 5 of all known heads

Stored = TypeVar("Stored")


def canonical_names(tensors: Mapping[str, Stored], path: Path) -> dict[str, Stored]:
    """The tensors by their names in the speculators layout. What is not needed to draft is left out."""
    renamed: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        new = canonical_name(name)
        if new in _OF_TARGET or new.endswith(IGNORED_SUFFIXES):
            continue
        if new in renamed:
            raise DamagedModelError(f"{path} has the tensor {new!r} twice, under two names. Use the published file.")
        renamed[new] = tensor
    return renamed


def canonical_name(name: str) -> str:
    name = name.removeprefix("model.")
    prefix = next((prefix for prefix in _LAYER_PREFIXES if name.startswith(prefix)), None)
    return LAYER + name.removeprefix(prefix) if prefix else name


def head_config(values: Mapping[str, Any], names: Collection[str], path: Path) -> HeadConfig:
    """Reads the shape of a head; `names` of its tensors are canonical. Raises DamagedModelError, UnsupportedModelError.

    `feature_layers` is empty where the file does not state them: then they follow from the target.
    """
    inner = _object(values, "transformer_layer_config", path) if "transformer_layer_config" in values else values
    nested, own = _object(values, "eagle_config", path), _object(values, OWN_KEY, path)
    _refuse_last_state_only(nested, path)
    layer = _layer(inner, path)
    flags = Fields(path, {**nested, **values})
    config = HeadConfig(
        layer=layer,
        draft_vocab_size=flags.integer("draft_vocab_size", layer.vocab_size),
        feature_layers=_feature_layers(values, nested, path),
        target_hidden_size=flags.integer("target_hidden_size", layer.hidden_size),
        feature_norm=_feature_norm(flags),
        norm_before_residual=flags.flag("norm_before_residual"),
        norm_output=flags.flag("norm_output"),
        own_embedding="embed_tokens.weight" in names,
        trained_context=Fields(path, own).integer("trained_context") if own.get("trained_context") else None,
        target=stated_target(values),
    )
    _check_sizes(config, path)
    return config


def head_tensors(config: HeadConfig) -> dict[str, Shape]:
    """Name and shape of every tensor that a backend needs. The id map is not among them."""
    layer, hidden = config.layer, config.layer.hidden_size
    shapes: dict[str, Shape] = {
        "fc.weight": (hidden, config.features_size),
        f"{LAYER}hidden_norm.weight": (hidden,),
        **{LAYER + name: shape for name, shape in layer_tensors(layer).items()},
        "norm.weight": (hidden,),
        "lm_head.weight": (config.draft_vocab_size, hidden),
    }
    for name in ("q_proj", "k_proj", "v_proj"):  # they read embedding and features side by side
        rows = shapes[f"{LAYER}self_attn.{name}.weight"][0]
        shapes[f"{LAYER}self_attn.{name}.weight"] = (rows, 2 * hidden)
    if config.own_embedding:
        shapes["embed_tokens.weight"] = (layer.vocab_size, hidden)
    if config.feature_norm == "all":
        shapes["input_norm.weight"] = (config.features_size,)
    if config.feature_norm == "each":
        count = config.features_size // config.target_hidden_size
        shapes |= {f"fc_norm.{index}.weight": (config.target_hidden_size,) for index in range(count)}
    return shapes


def _layer(values: Mapping[str, Any], path: Path) -> DecoderConfig:
    """The head's one layer. Its bias on q, k and v is an option here, not a property of the family."""
    left_out = ("architectures", "attention_bias", "tie_word_embeddings")
    layer = config_from_hf({key: value for key, value in values.items() if key not in left_out}, path)
    if layer.num_layers != 1:
        raise UnsupportedModelError(
            f"{path} describes a head of {layer.num_layers} layers; heads of one layer are supported. Use another head."
        )
    kinds = values.get("layer_types")
    if (isinstance(kinds, list) and "sliding_attention" in kinds) or _has_window(values, layer):
        raise UnsupportedModelError(f"{path} describes a head with a sliding window, which is not supported.")
    bias = FAMILIES[layer.architecture].qkv_bias or bool(values.get("attention_bias"))
    layer = replace(layer, qkv_bias=bias, sliding_window=None)
    check_config(layer, path)
    return layer


def _has_window(values: Mapping[str, Any], layer: DecoderConfig) -> bool:
    """Mistral's default window counts only if it is stated: its heads are saved without one."""
    return layer.sliding_window is not None and values.get("sliding_window") is not None


def _feature_layers(values: Mapping[str, Any], nested: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    """How many layers of the target come before each feature.

    vLLM and the speculators layout count so: 2 is the output of the second layer. SGLang and SpecForge, who write the
    list into `eagle_config`, count layers from 0 and mean a layer's output: their 1 is the same.
    """
    key = "eagle_aux_hidden_state_layer_ids"
    stated, shift = (nested[key], 1) if nested.get(key) else (values.get(key), 0)
    if stated is None:
        return ()
    ids = stated if isinstance(stated, list) else []
    are_layers = all(type(item) is int and 0 <= item < MAX_LAYERS for item in ids)
    if not are_layers or not 1 <= len(set(ids)) == len(ids) <= _MAX_FEATURE_LAYERS:
        raise DamagedModelError(f"{path} has {key} = {str(stated)[:80]}; expected different numbers of layers.")
    return tuple(item + shift for item in ids)


def _refuse_last_state_only(nested: Mapping[str, Any], path: Path) -> None:
    if nested.get("use_aux_hidden_state") is False:
        raise UnsupportedModelError(
            f"{path} describes a head that reads only the target's last hidden state, which is not supported. Use a "
            "head that reads several layers."
        )


def _feature_norm(flags: Fields) -> FeatureNorm:
    if flags.flag("norm_before_fc") and flags.flag("fc_norm"):
        raise DamagedModelError(f"{flags.path} sets norm_before_fc and fc_norm; expected at most one of them.")
    return "all" if flags.flag("norm_before_fc") else "each" if flags.flag("fc_norm") else "none"


def _check_sizes(config: HeadConfig, path: Path) -> None:
    vocabulary, hidden = config.layer.vocab_size, config.target_hidden_size
    if not 1 <= config.draft_vocab_size <= vocabulary:
        raise DamagedModelError(
            f"{path} has a draft_vocab_size of {config.draft_vocab_size}; expected 1 to {vocabulary}."
        )
    if not 1 <= hidden < 1 << 26:
        raise DamagedModelError(f"{path} has a target_hidden_size of {hidden}; expected a number above 0.")
    if hidden != config.layer.hidden_size and not config.own_embedding:
        raise DamagedModelError(
            f"{path} describes a head of another width than its target ({config.layer.hidden_size} and {hidden}), but "
            "it has no embed_tokens.weight of its own."
        )


def _object(values: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    value = values.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DamagedModelError(f"{path} has {key} = {str(value)[:80]}; expected an object.")
    return value
