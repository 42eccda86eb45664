"""Tiny random GGUF models in float32, and ways to load them into llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import small_models
from slipstream.backends.llamacpp.load import load_model
from slipstream.backends.llamacpp.model import LlamaCppModel
from slipstream.backends.llamacpp.options import LlamaCppOptions
from slipstream.models.gguf.file import open_gguf_file
from unit.models import model_files

ARCHITECTURES = ("llama", "qwen2", "qwen3")
CONTEXT = 512


def write(architecture: str, folder: Path, **metadata: object) -> Path:
    path = folder / f"{architecture}.gguf"
    rng = np.random.default_rng(0)
    tensors = model_files.gguf_tensors(architecture, rng)
    for name, values in tensors.items():
        if "norm" not in name:
            values *= 0.3  # far from uniform logits, and far from a softmax of one key
    model_files.write_gguf(
        path,
        architecture=architecture,
        tensors=tensors,
        metadata={f"{architecture}.context_length": CONTEXT, **metadata},
    )
    return path


def write_mamba(folder: Path) -> Path:
    """A recurrent model: its memory is a state of all it has read."""
    path, rng, hidden, inner, state, rank = folder / "mamba.gguf", np.random.default_rng(0), 64, 128, 16, 4
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (small_models.VOCAB_SIZE, hidden)}
    for i in range(2):
        shapes |= {
            f"blk.{i}.ssm_in.weight": (2 * inner, hidden),
            f"blk.{i}.ssm_conv1d.weight": (inner, 4),
            f"blk.{i}.ssm_conv1d.bias": (inner,),
            f"blk.{i}.ssm_x.weight": (rank + 2 * state, inner),
            f"blk.{i}.ssm_dt.weight": (inner, rank),
            f"blk.{i}.ssm_dt.bias": (inner,),
            f"blk.{i}.ssm_d": (inner,),
            f"blk.{i}.ssm_out.weight": (hidden, inner),
        }
    tensors = {name: (0.3 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    tensors["output_norm.weight"] = np.ones(hidden, np.float32)
    for i in range(2):
        tensors[f"blk.{i}.attn_norm.weight"] = np.ones(hidden, np.float32)
        tensors[f"blk.{i}.ssm_a"] = -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1))
    sizes = {"conv_kernel": 4, "inner_size": inner, "state_size": state, "time_step_rank": rank}
    attention = ("attention.head_count", "attention.head_count_kv", "rope.freq_base", "rope.dimension_count")
    metadata = {f"mamba.ssm.{name}": size for name, size in sizes.items()}
    metadata |= {f"mamba.{name}": None for name in attention} | {"mamba.context_length": CONTEXT}
    metadata |= {"mamba.feed_forward_length": 0}
    model_files.write_gguf(path, architecture="mamba", tensors=tensors, metadata=metadata)
    return path


def load(architecture: str, folder: Path, **options: object) -> LlamaCppModel:
    return load_file(write(architecture, folder), **options)


def load_file(spec: str | Path, **options: object) -> LlamaCppModel:
    settings = {"context_length": CONTEXT, "max_streams": 8, "kv_tokens": 4096, "threads": 1} | options
    if settings.get("exact"):
        del settings["kv_tokens"]
    return load_model(open_gguf_file(spec), LlamaCppOptions(**settings))  # type: ignore[arg-type]
