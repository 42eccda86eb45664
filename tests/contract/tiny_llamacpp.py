"""Tiny random GGUF models in float32, and ways to load them into llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slipstream.backends.llamacpp.load import load_model
from slipstream.backends.llamacpp.model import LlamaCppModel
from slipstream.backends.llamacpp.options import LlamaCppOptions
from slipstream.models.gguf_file import open_gguf_file
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


def load(architecture: str, folder: Path, **options: object) -> LlamaCppModel:
    return load_file(write(architecture, folder), **options)


def load_file(spec: str | Path, **options: object) -> LlamaCppModel:
    settings = {"context_length": CONTEXT, "max_streams": 8, "kv_tokens": 4096, "threads": 1} | options
    if settings.get("exact"):
        del settings["kv_tokens"]
    return load_model(open_gguf_file(spec), LlamaCppOptions(**settings))  # type: ignore[arg-type]
