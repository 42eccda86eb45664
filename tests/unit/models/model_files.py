"""Tiny models written for the tests: Hugging Face folders by transformers, GGUF files by gguf's own writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import transformers

import small_models
from small_models import SIZES, TEMPLATE, byte_level_tokenizer


def add_byte_level_metadata(
    writer: gguf.GGUFWriter, tokenizer: tokenizers.Tokenizer, rows: int, template: str | None = None
) -> None:
    """The same tokenizer as GGUF metadata."""
    vocabulary = small_models.gguf_vocabulary(tokenizer, rows)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["token_type"])
    writer.add_token_merges(vocabulary["merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if template is not None:
        writer.add_chat_template(template)


def save_model(folder: Path, family: str, **options: object) -> transformers.PreTrainedModel:
    """A random model of a family, saved with its tokenizer. `max_shard_size` and config values may be given."""
    shard_size = options.pop("max_shard_size", "1GB")
    config = getattr(transformers, f"{family}Config")(**(SIZES | {"head_dim": small_models.HEAD_DIM} | options))
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.save_pretrained(folder, max_shard_size=shard_size)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(small_models.TOKENIZER_CONFIG))


def gguf_tensors(architecture: str, rng: np.random.Generator, *, tied: bool = True) -> dict[str, np.ndarray]:
    """Random float32 tensors of SIZES, by GGUF name."""
    shapes = small_models.gguf_shapes(architecture, tied=tied)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    tensors: dict[str, np.ndarray] | None = None,
    quantisation: gguf.GGMLQuantizationType | None = None,
    metadata: dict[str, Any] | None = None,
    tokenizer: bool = True,
) -> dict[str, np.ndarray]:
    """Writes a tiny GGUF and returns its float32 tensors. `metadata` adds keys or, with None, leaves them out."""
    tensors = tensors if tensors is not None else gguf_tensors(architecture, np.random.default_rng(0))
    writer = gguf.GGUFWriter(path, architecture)
    metadata = dict(metadata or {})
    template = metadata.pop("tokenizer.chat_template", TEMPLATE)
    for key, value in _metadata(architecture, metadata).items():
        _add(writer, key, value)
    if tokenizer:
        add_byte_level_metadata(writer, byte_level_tokenizer(), tensors["token_embd.weight"].shape[0], template)
    for name, values in tensors.items():
        if quantisation is not None and values.ndim > 1:
            writer.add_tensor(name, gguf.quants.quantize(values, quantisation), raw_dtype=quantisation)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _metadata(architecture: str, changes: dict[str, Any]) -> dict[str, Any]:
    values = {**small_models.GGUF_SIZES, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0}
    values = {f"{architecture}.{key}": value for key, value in values.items()} | changes
    return {key: value for key, value in values.items() if value is not None}


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


def interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's permutation of rotary rows when it converts Llama models."""
    head = rows.shape[0] // num_heads
    return rows.reshape(num_heads, 2, head // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
