"""KvLayers: what each layer of a model keeps for a token, from config.json or GGUF metadata.

Most models keep the same in every layer. Others have sliding windows in some layers (Gemma, gpt-oss, Mistral), other
numbers of heads from layer to layer (OpenELM, Nemotron), layers without attention, or one compressed row for all heads
(MLA: DeepSeek, Kimi). What the files do not say is counted as a full layer, and the result is called an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

# Every n-th layer has full attention and those before it a window; 0: all layers have one. From transformers' defaults,
# for files that do not list their layers.
WINDOW_PATTERNS = {
    "mistral": 0, "mixtral": 0, "phi3": 0, "starcoder2": 0, "gemma2": 2, "gpt_oss": 2, "cohere2": 4, "exaone4": 4,
    "olmo3": 4, "gemma3_text": 6, "gemma3": 6,
}  # fmt: skip
# The same for GGUF architectures in llama.cpp, which ignores the window of some of them.
GGUF_PATTERNS = {
    "gemma2": 2, "gpt-oss": 2, "cohere2": 4, "llama4": 4, "exaone4": 4, "olmo2": 4, "afmoe": 4, "gemma3n": 5,
    "gemma3": 6,
}  # fmt: skip
GGUF_WITHOUT_WINDOWS = ("llama", "qwen2", "qwen3", "phi3", "starcoder2", "mistral3")
LLAMA4_WINDOW = 8192  # llama.cpp's own value: the files do not have it
RECURRENT_MARKS = ("mamba", "ssm", "linear_", "attn_layer_", "full_attention_interval")
KINDS_WITH_WINDOW = ("sliding_attention", "chunked_attention", "local_attention")
KINDS_WITH_KV = ("full_attention", "attention", "global_attention")
MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers that keep the same. `numbers` are the cached numbers of one token in one layer, keys and values."""

    num_layers: int
    numbers: int
    window: int = 0  # tokens; 0: the whole context
    expanded: int = 0  # MLA: numbers in an engine that keeps each head's keys and values instead; 0: no such form


@dataclass(frozen=True, slots=True)
class KvShape:
    layers: tuple[KvLayers, ...]
    is_bound: bool = False  # the files do not say all: the real cache may be smaller

    @property
    def num_layers(self) -> int:
        return sum(layer.num_layers for layer in self.layers)


def from_config(values: Mapping[str, Any]) -> KvShape | None:
    """From config.json; None where it does not say the number of layers or the size of a head."""
    heads = _config_heads(values)
    dim = _positive(values.get("head_dim")) or _divided(values, "hidden_size", "num_attention_heads")
    rank = _positive(values.get("kv_lora_rank"))
    if not heads or (dim is None and rank is None):
        return None
    windows, is_bound = _config_windows(values, len(heads))
    if rank:
        latent = rank + (_positive(values.get("qk_rope_head_dim")) or 0)
        parts = [_positive(values.get(key)) or 0 for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
        expanded = (_positive(values.get("num_attention_heads")) or 0) * sum(parts)
        rows = [(latent if w is not None else 0, w or 0, expanded) for w in windows]
    else:
        rows = [(2 * n * (dim or 0) if w is not None else 0, w or 0, 0) for n, w in zip(heads, windows, strict=True)]
    shared = _positive(values.get("num_kv_shared_layers")) or 0  # the last layers use those of others
    return KvShape(_grouped(rows[: len(rows) - shared]), is_bound)


def from_gguf(metadata: Mapping[str, Any], architecture: str | None) -> KvShape | None:
    """From GGUF metadata, as llama.cpp makes its cache; None where it does not say enough."""

    def value(key: str) -> Any:
        return metadata.get(f"{architecture}.{key}")

    num_layers = _positive(value("block_count"))
    query_heads = _per_layer(value("attention.head_count"), num_layers)
    heads = _per_layer(value("attention.head_count_kv"), num_layers) or query_heads
    hidden = _positive(value("embedding_length"))
    default = hidden // max(query_heads) if hidden and query_heads and max(query_heads) else None
    key = _positive(value("attention.key_length")) or default
    values = _positive(value("attention.value_length")) or default
    if not heads or key is None or values is None:
        return None
    if _positive(value("attention.key_length_mla")):
        values = 0  # llama.cpp keeps one compressed row, from which it reads the values too
    windows, is_bound = _gguf_windows(value, architecture, len(heads))
    in_window = (_positive(value("attention.key_length_swa")) or key) + (
        _positive(value("attention.value_length_swa")) or values
    )
    rows = [(n * (in_window if w else key + values), w, 0) for n, w in zip(heads, windows, strict=True)]
    shared = _positive(value("attention.shared_kv_layers")) or 0
    is_recurrent = any(name.startswith(f"{architecture}.ssm.") for name in metadata)
    lists_heads = not isinstance(value("attention.head_count_kv"), int)
    return KvShape(_grouped(rows[: len(rows) - shared]), is_bound or (is_recurrent and not lists_heads))


# -- config.json ------------------------------------------------------------------------------------------------------


def _config_heads(values: Mapping[str, Any]) -> list[int]:
    """KV heads of each layer; 0: a layer without attention. Empty if unknown."""
    count = _positive(values.get("num_hidden_layers")) or _positive(values.get("num_transformer_layers"))
    query = values.get("num_attention_heads")
    blocks = values.get("block_configs")
    if isinstance(blocks, list) and blocks:
        return [_block_heads(block, _positive(query) or 0) for block in blocks[:MAX_LAYERS]]
    for key in ("num_key_value_heads_per_layer", "num_kv_heads", "num_key_value_heads"):
        if found := _per_layer(values.get(key), count):
            return found
    return _per_layer(query, count)


def _block_heads(block: Any, query_heads: int) -> int:
    """Of one entry of `block_configs`, in which Nemotron and DeciLM describe a layer."""
    attention = block.get("attention") if isinstance(block, dict) else None
    if not isinstance(attention, dict) or attention.get("no_op") or attention.get("replace_with_linear"):
        return 0
    group = _positive(attention.get("n_heads_in_group"))
    return _positive(attention.get("num_key_value_heads")) or (query_heads // group if group else query_heads)


def _config_windows(values: Mapping[str, Any], num_layers: int) -> tuple[list[int | None], bool]:
    """The window of each layer (0: the whole context, None: no attention), and whether it is only a bound."""
    window = 0 if values.get("use_sliding_window") is False else _positive(values.get("sliding_window")) or 0
    kinds = values.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == num_layers:
        short = window or _positive(values.get("attention_chunk_size")) or 0
        return [_window_of(kind, short) for kind in kinds], False
    pattern = values.get("hybrid_override_pattern")  # Nemotron-H: M is Mamba, * attention, - an MLP
    if isinstance(pattern, str) and len(pattern) == num_layers:
        return [0 if sign == "*" else None for sign in pattern], False
    if any(str(key).startswith(RECURRENT_MARKS) for key in values):
        return [0] * num_layers, True
    if not window:
        return [0] * num_layers, False
    first = values.get("max_window_layers")  # Qwen: the layers before it have full attention
    if type(first) is int and first >= 0:
        return [0 if layer < first else window for layer in range(num_layers)], False
    every = values.get("sliding_window_pattern", values.get("_sliding_window_pattern"))
    if type(every) is not int:
        every = WINDOW_PATTERNS.get(str(values.get("model_type")))
    if every is None:
        return [0] * num_layers, True
    return list(_patterned(window, every, num_layers)), False


def _window_of(kind: Any, window: int) -> int | None:
    if kind in KINDS_WITH_WINDOW:
        return window
    return 0 if kind in KINDS_WITH_KV else None  # mamba, linear_attention, conv: a state of fixed size


# -- GGUF -------------------------------------------------------------------------------------------------------------


def _gguf_windows(value: Any, architecture: str | None, num_layers: int) -> tuple[list[int], bool]:
    window = _positive(value("attention.sliding_window")) or (LLAMA4_WINDOW if architecture == "llama4" else 0)
    if not window or architecture in GGUF_WITHOUT_WINDOWS:
        return [0] * num_layers, False
    stated = value("attention.sliding_window_pattern")
    flags = _flags(stated, num_layers)
    if flags:
        return [window if has_window else 0 for has_window in flags], False
    every = stated if type(stated) is int else GGUF_PATTERNS.get(architecture or "")
    return ([0] * num_layers, True) if every is None else (list(_patterned(window, every, num_layers)), False)


def _flags(stated: Any, num_layers: int) -> list[bool]:
    listed = stated.tolist() if hasattr(stated, "tolist") else stated
    return [bool(flag) for flag in listed] if isinstance(listed, list) and len(listed) == num_layers else []


# -- both -------------------------------------------------------------------------------------------------------------


def _patterned(window: int, every: int, num_layers: int) -> Iterable[int]:
    """Layers with a window, and every n-th with full attention; 0: no such layer."""
    return (0 if every > 0 and layer % every == every - 1 else window for layer in range(num_layers))


def _per_layer(value: Any, num_layers: int | None) -> list[int]:
    """A number for each layer, from one number or a list of them. Empty if neither is right."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(listed, list) and 0 < len(listed) <= MAX_LAYERS:
        whole = all(type(number) is int and number >= 0 for number in listed)
        return listed if whole and num_layers in (None, len(listed)) else []
    single = _positive(value)
    return [single] * num_layers if single and num_layers and num_layers <= MAX_LAYERS else []


def _grouped(rows: Sequence[tuple[int, int, int]]) -> tuple[KvLayers, ...]:
    """Layers of the same kind together, wherever they are; those that keep nothing are counted too."""
    return tuple(KvLayers(len(list(same)), *row) for row, same in groupby(sorted(rows, reverse=True)))


def _positive(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _divided(values: Mapping[str, Any], whole: str, part: str) -> int | None:
    top, bottom = _positive(values.get(whole)), _positive(values.get(part))
    return top // bottom if top and bottom else None
