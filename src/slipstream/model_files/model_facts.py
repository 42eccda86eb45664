"""ModelFacts: what a model's files say about it, also for models that Slipstream can't run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from slipstream.errors import ModelError
from slipstream.model_files.kv_layers import KvShape, from_config, from_gguf
from slipstream.model_files.local_models import local_place
from slipstream.model_files.weights_gguf import parts, stored_bytes
from slipstream.model_files.weights_safetensors import StoredShape, check_file, check_index
from slipstream.models.draft_heads.kinds import kind_in_config, stated_target
from slipstream.models.files import read_optional_config
from slipstream.models.gguf.dequantise import type_names
from slipstream.models.gguf.header import MAGIC, GgufHeader, read_header
from slipstream.models.hf.checkpoint import INDEX, PICKLES
from slipstream.models.hf.config import FAMILIES
from slipstream.models.text.chat_template import template_of_folder
from slipstream.reading import open_regular

Format = Literal["safetensors", "gguf", "pickle"]
# quant_method in config.json -> the name used here; others keep their own.
METHODS = {
    "awq": "AWQ",
    "gptq": "GPTQ",
    "fp8": "FP8",
    "fbgemm_fp8": "FP8",
    "exl2": "EXL2",
    "exl3": "EXL3",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "mxfp4": "MXFP4",
}
PACKED_MARKS = {".trellis": "EXL3", ".q_weight": "EXL2", ".g_idx": "GPTQ", ".qzeros": "AWQ"}  # the first that is found
SCALES = ("_scale", "_scale_inv", ".scales", "_absmax", "input_scale")
GUESSED_FILE_TYPE = 1024
FP8_BY_BLOCK = "8 bits by block"  # blocks of inputs have scales of their own


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A field is None if the files do not say."""

    name: str
    format: Format | None
    architecture: str | None  # "llama", "qwen2", …
    num_parameters: int | None
    weight_bytes: int | None  # on disk
    quantisation: str | None  # "none", "AWQ", "GPTQ", "FP8", "EXL2", "EXL3", "GGUF", "bitsandbytes", …
    quantisation_kind: str | None  # "Q4_K_M", "4 bits", "2.5 bits"; the float type if not quantised
    vocab_size: int | None  # rows of the embedding
    context_length: int | None
    num_layers: int | None
    num_kv_heads: int | None
    head_dim: int | None
    hidden_size: int | None
    rope_scaling: str | None  # "llama3 x8"; None: none
    original_context_length: int | None = None  # before rope scaling, if the files say
    sliding_window: int | None = None
    num_heads: int | None = None
    has_chat_template: bool | None = None
    draft_head: str | None = None  # the kind of head, such as EAGLE-3; None: a whole model
    made_for: str | None = None  # the target of a head
    kv_shape: KvShape | None = None  # what each layer keeps for a token


def describe(spec: str | Path) -> ModelFacts:
    """Reads headers and config.json. Raises ModelNotFoundError if nothing is there; damaged values are None."""
    place = local_place(spec)
    folder = place.path.parent if place.path.suffix == ".safetensors" else place.path
    if not folder.is_dir():
        return _describe_gguf(place.path, place.name)
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1 and not any(folder.glob("*.safetensors")):
        return _describe_gguf(ggufs[0], place.name)
    return _describe_folder(folder, place.name)


def _describe_folder(folder: Path, name: str) -> ModelFacts:
    top = _quiet(lambda: read_optional_config(folder / "config.json"), {})
    nested = top.get("text_config", top.get("transformer_layer_config"))  # of multimodal models and draft heads
    config = Config(nested if isinstance(nested, dict) else top)
    tensors = _stored(folder)
    method, kind = _quantisation(folder, top, tensors)
    files, format = _weight_files(folder)
    rope, original = _rope(config.values)
    family = FAMILIES.get(str(config.values.get("model_type")))
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size") or config.integer("model_dim")
    shape = from_config(config.values)
    return ModelFacts(
        name=name,
        format=format,
        architecture=config.text("model_type") or _first_text(top.get("architectures")),
        num_parameters=_count(tensors) if method in ("none", "FP8") and tensors else _estimated_parameters(config),
        weight_bytes=_total_bytes(files),
        quantisation=method if files or "quantization_config" in top else None,
        quantisation_kind=kind,
        vocab_size=config.integer("vocab_size") or _embedding_rows(tensors),
        context_length=config.integer("max_position_embeddings")
        or config.integer("max_context_length")
        or (family.context_length if family else None),
        num_layers=config.integer("num_hidden_layers") or config.integer("num_transformer_layers"),
        num_kv_heads=config.integer("num_key_value_heads") or config.integer("num_kv_heads") or heads,
        head_dim=config.integer("head_dim") or (hidden // heads if hidden and heads else None),
        hidden_size=hidden,
        rope_scaling=rope,
        original_context_length=original,
        sliding_window=_window(config.values),
        num_heads=heads,
        has_chat_template=_has_template(folder),
        draft_head=kind_in_config(top),
        made_for=stated_target(top),
        kv_shape=shape,
    )


@dataclass(frozen=True, slots=True)
class Config:
    """Reads a JSON object or GGUF metadata; missing and wrong values are None."""

    values: Mapping[str, Any]
    prefix: str = ""

    def integer(self, key: str) -> int | None:
        value: Any = self.values.get(self.prefix + key)
        if isinstance(value, np.ndarray):  # GGUF: one value per layer
            value = value.tolist()
        if isinstance(value, list) and value and all(type(entry) is int for entry in value):
            value = max(value)
        return value if type(value) is int and value > 0 else None

    def text(self, key: str) -> str | None:
        value = self.values.get(self.prefix + key)
        return value if isinstance(value, str) and value else None


def _quiet(read: Callable[[], dict[str, Any]], otherwise: dict[str, Any]) -> dict[str, Any]:
    try:
        return read()
    except ModelError:
        return otherwise


def _stored(folder: Path) -> dict[str, StoredShape]:
    if (folder / INDEX).is_file():
        return check_index(folder / INDEX).tensors
    return {key: t for file in sorted(folder.glob("*.safetensors")) for key, t in check_file(file).tensors.items()}


def _weight_files(folder: Path) -> tuple[list[Path], Format | None]:
    if files := sorted(folder.glob("*.safetensors")):
        return files, "safetensors"
    files = [file for pattern in PICKLES for file in folder.glob(pattern)]
    return files, "pickle" if files else None


def _total_bytes(files: Iterable[Path]) -> int | None:
    sizes = [file.stat().st_size for file in files if file.is_file()]
    return sum(sizes) if sizes else None


def _quantisation(folder: Path, config: Mapping[str, Any], tensors: dict[str, StoredShape]) -> tuple[str, str | None]:
    """The method and its bits. Old GPTQ checkpoints have these in a separate file."""
    stated = config.get("quantization_config")
    if not isinstance(stated, dict):
        stated = _quiet(lambda: read_optional_config(folder / "quantize_config.json"), {})
        stated = {"quant_method": "gptq"} | stated if stated else {}
    method = str(stated.get("quant_method", "")).lower()
    if method == "compressed-tensors" and stated.get("format") == "float-quantized":
        method = "fp8"
    if METHODS.get(method) == "FP8" and _has_blocks(stated):
        return "FP8", FP8_BY_BLOCK
    if method:
        return METHODS.get(method, method), _bits(stated)
    for mark, name in PACKED_MARKS.items():
        if any(key.endswith(mark) for key in tensors):
            return name, None
    types = Counter[str]()
    for tensor in tensors.values():
        types[tensor.dtype] += tensor.num_bytes
    common = types.most_common(1)[0][0] if types else config.get("dtype") or config.get("torch_dtype")
    if isinstance(common, str) and common.startswith("F8"):
        return "FP8", "8 bits"
    return "none", common if isinstance(common, str) else None


def _has_blocks(stated: Mapping[str, Any]) -> bool:
    groups = stated.get("config_groups")
    each = groups.values() if isinstance(groups, dict) else ()
    weights = [group.get("weights") for group in each if isinstance(group, dict)]
    return bool(stated.get("weight_block_size")) or any(
        isinstance(w, dict) and w.get("block_structure") for w in weights
    )


def _bits(stated: Mapping[str, Any]) -> str | None:
    bits = stated.get("bits", stated.get("w_bit"))
    if stated.get("load_in_4bit"):
        bits = 4
    elif stated.get("load_in_8bit"):
        bits = 8
    return f"{bits:g} bits" if isinstance(bits, int | float) and not isinstance(bits, bool) else None


def _count(tensors: dict[str, StoredShape]) -> int:
    return sum(math.prod(tensor.shape) for name, tensor in tensors.items() if not name.endswith(SCALES))


def _estimated_parameters(config: Config) -> int | None:
    """The parameters of a dense decoder with a gated MLP, from its sizes: packed tensors do not show their element
    count.
    """
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_attention_heads")
    sizes = [config.integer(key) for key in keys]
    if None in sizes or config.values.get("num_local_experts") or config.values.get("num_experts"):
        return None
    hidden, inner, layers, vocab, heads = (size or 0 for size in sizes)
    head_dim = config.integer("head_dim") or hidden // heads
    kv_heads = config.integer("num_key_value_heads") or heads
    layer = 2 * hidden * head_dim * (heads + kv_heads) + 3 * hidden * inner + 2 * hidden
    embeddings = 1 if config.values.get("tie_word_embeddings") else 2
    return layers * layer + embeddings * vocab * hidden + hidden


def _embedding_rows(tensors: dict[str, StoredShape]) -> int | None:
    embedding = next((t for name, t in tensors.items() if name.endswith("embed_tokens.weight")), None)
    return embedding.shape[0] if embedding and embedding.shape else None


def _rope(values: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """The scaling as text, and the context before scaling."""
    stated = values.get("rope_scaling") or values.get("rope_parameters")
    if not isinstance(stated, dict):
        return None, None
    kind, factor = stated.get("rope_type", stated.get("type", "default")), stated.get("factor")
    original = Config(stated).integer("original_max_position_embeddings")
    if kind == "default":
        return None, None
    return f"{kind} x{factor:g}" if isinstance(factor, int | float) else str(kind), original


def _window(values: Mapping[str, Any]) -> int | None:
    return None if values.get("use_sliding_window") is False else Config(values).integer("sliding_window")


def _has_template(folder: Path) -> bool | None:
    try:
        return template_of_folder(folder, read_optional_config(folder / "tokenizer_config.json")) is not None
    except ModelError:
        return None


def _first_text(value: Any) -> str | None:
    return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else None


def _describe_gguf(path: Path, name: str) -> ModelFacts:
    try:
        header = read_header(path)
    except (ModelError, OSError, ValueError):
        form: Format | None = "gguf" if _is_gguf(path) else None
        return ModelFacts(name, form, None, None, _total_bytes([path]), form and form.upper(), *(None,) * 8)
    architecture = Config(header.metadata).text("general.architecture")
    meta = Config(header.metadata, f"{architecture}.")
    heads, hidden = meta.integer("attention.head_count"), meta.integer("embedding_length")
    scaling, factor = meta.text("rope.scaling.type"), header.metadata.get(f"{architecture}.rope.scaling.factor")
    is_scaled = scaling not in (None, "none")
    whole = [file for file in parts(path) if file.is_file()]
    return ModelFacts(
        name=name,
        format="gguf",
        architecture=architecture,
        num_parameters=_gguf_parameters(header) if len(whole) == 1 else None,
        weight_bytes=_total_bytes(whole),
        quantisation="GGUF",
        quantisation_kind=_gguf_kind(header),
        vocab_size=_gguf_vocabulary(header),
        context_length=meta.integer("context_length"),
        num_layers=meta.integer("block_count"),
        num_kv_heads=meta.integer("attention.head_count_kv") or heads,
        head_dim=meta.integer("attention.key_length") or (hidden // heads if hidden and heads else None),
        hidden_size=hidden,
        rope_scaling=_gguf_scaling(scaling, factor) if is_scaled else _llama3_scaling(header),
        original_context_length=meta.integer("rope.scaling.original_context_length"),
        sliding_window=meta.integer("attention.sliding_window"),
        num_heads=heads,
        has_chat_template=Config(header.metadata).text("tokenizer.chat_template") is not None,
        kv_shape=from_gguf(header.metadata, architecture),
    )


def _is_gguf(path: Path) -> bool:
    """Also one that is damaged."""
    with suppress(OSError), open_regular(path) as file:
        if file.read(len(MAGIC)) == MAGIC:
            return True
    return path.suffix.lower() == ".gguf"


def _gguf_parameters(header: GgufHeader) -> int | None:
    return sum(math.prod(t.shape) for t in header.tensors.values() if t.name != "rope_freqs.weight") or None


def _gguf_scaling(kind: str | None, factor: Any) -> str:
    return f"{kind} x{factor:g}" if isinstance(factor, int | float) else str(kind)


def _llama3_scaling(header: GgufHeader) -> str | None:
    """Llama 3.1's scaling is a tensor in GGUF, not metadata."""
    return "llama3" if "rope_freqs.weight" in header.tensors else None


def _gguf_vocabulary(header: GgufHeader) -> int | None:
    embedding, tokens = header.tensors.get("token_embd.weight"), header.metadata.get("tokenizer.ggml.tokens")
    if embedding is not None:
        return embedding.shape[0]
    return len(tokens) if isinstance(tokens, list) else None


def _gguf_kind(header: GgufHeader) -> str | None:
    """The quantisation type, such as Q4_K_M: the one the file states, else the type of most bytes."""
    import gguf

    stated = header.metadata.get("general.file_type")
    if isinstance(stated, int) and stated != GUESSED_FILE_TYPE and stated in set(gguf.LlamaFileType):
        return gguf.LlamaFileType(stated).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    types = Counter[int]()
    for info in header.tensors.values():
        types[info.type_id] += stored_bytes(info) or 0
    return type_names().get(types.most_common(1)[0][0]) if types else None
