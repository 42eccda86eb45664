"""Models of any size that take no room on disk: true headers and vocabularies, and holes in place of the weights.

A file system without sparse files would need the real size, so `needs_room` tells whether this one has them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Q4_K, F32 = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.F32


@dataclass(frozen=True, slots=True)
class FakeShape:
    """A decoder of the Llama family. `extra` is metadata of the architecture, or values of config.json."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    intermediate: int
    context: int = 131072
    architecture: str = "llama"
    prefix: str = "t"  # of its tokens: models with the same prefix have the same vocabulary
    num_tokens: int = 2048
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def head_dim(self) -> int:
        return self.hidden // self.num_heads

    def tokens(self) -> list[str]:
        merged = {100: "x", 101: "y", 102: "xy"}  # a tokenizer needs a merge, and the tokens that it merges
        return [merged.get(i, f"{self.prefix}{i}") for i in range(self.num_tokens)]


def write_gguf(path: Path, shape: FakeShape, num_parts: int = 1, missing: int = 0) -> Path:
    """A Q4_K file, or the parts of one; the last `missing` parts are left out. Returns the (first) file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = list(_gguf_tensors(shape))
    size = math.ceil(len(tensors) / num_parts)
    names = [path.with_name(f"{path.stem}-{n:05d}-of-{num_parts:05d}.gguf") for n in range(1, num_parts + 1)]
    for number, name in enumerate(names[: num_parts - missing] if num_parts > 1 else [path]):
        _write_part(name, shape, tensors[number * size : (number + 1) * size], number, num_parts)
    return names[0] if num_parts > 1 else path


def _write_part(path: Path, shape: FakeShape, tensors: list[tuple[str, tuple[int, ...]]], no: int, count: int) -> None:
    writer = gguf.GGUFWriter(path, shape.architecture)
    if count > 1:
        writer.add_uint16("split.no", no)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(tensors) * count)
    if no == 0:
        _add_metadata(writer, shape)
    for name, dimensions in tensors:
        kind = Q4_K if len(dimensions) > 1 else F32
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        num_bytes = math.prod(dimensions) // block * block_bytes
        writer.add_tensor_info(name, dimensions, np.dtype(np.float32), num_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    total = sum(gguf.GGUFWriter.ggml_pad(info.nbytes, 32) for part in writer.tensors for info in part.values())
    writer.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(gguf.GGUFWriter.ggml_pad(size, 32) + total)


def _add_metadata(writer: gguf.GGUFWriter, shape: FakeShape) -> None:
    tokens = shape.tokens()
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    for key, value in shape.extra.items():
        writer.add_uint32(f"{shape.architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(["x y"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)


def _gguf_tensors(shape: FakeShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, kv = shape.hidden, shape.num_kv_heads * shape.head_dim
    yield "token_embd.weight", (shape.num_tokens, hidden)
    yield "output_norm.weight", (hidden,)
    yield "output.weight", (shape.num_tokens, hidden)
    for layer in range(shape.num_layers):
        for name, dimensions in (
            ("attn_norm", (hidden,)), ("attn_q", (hidden, hidden)), ("attn_k", (kv, hidden)), ("attn_v", (kv, hidden)),
            ("attn_output", (hidden, hidden)), ("ffn_norm", (hidden,)), ("ffn_gate", (shape.intermediate, hidden)),
            ("ffn_up", (shape.intermediate, hidden)), ("ffn_down", (hidden, shape.intermediate)),
        ):  # fmt: skip
            yield f"blk.{layer}.{name}.weight", dimensions


def write_folder(folder: Path, shape: FakeShape, weights_gb: float, quantisation: Mapping[str, Any]) -> Path:
    """A folder as quantised checkpoints have it: config.json, tokenizer.json, and one packed tensor."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.num_tokens,
        "hidden_size": shape.hidden, "intermediate_size": shape.intermediate, "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads, "num_key_value_heads": shape.num_kv_heads, "hidden_act": "silu",
        "max_position_embeddings": shape.context, "rms_norm_eps": 1e-5, "quantization_config": dict(quantisation),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | dict(shape.extra)))
    vocab = {text: number for number, text in enumerate(shape.tokens())}
    tokenizer = {
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["x", "y"]]},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    size = int(weights_gb * 1e9) // 4 * 4
    header = json.dumps({"model.layers.0.q_weight": {"dtype": "I32", "shape": [size // 4], "data_offsets": [0, size]}})
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header.encode())
        file.truncate(8 + len(header) + size)
    return folder


def needs_room(folder: Path) -> bool:
    """Whether this file system stores holes."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / "probe"
    with probe.open("wb") as file:
        file.truncate(64 << 20)
    stored = probe.stat().st_blocks * 512
    probe.unlink()
    return stored > 1 << 20
