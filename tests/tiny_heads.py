"""Tiny draft heads with random weights, in every layout that is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from head_oracle import to_torch
from slipstream.models.checkpoint import RawTensor
from slipstream.models.config import DecoderConfig
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.draft_heads.export import HeadNotes, save_head
from slipstream.models.draft_heads.layouts import head_tensors

TARGET = DecoderConfig(
    architecture="llama", vocab_size=48, hidden_size=16, intermediate_size=24, num_layers=8, num_heads=2,
    num_kv_heads=1, head_dim=8, context_length=256, norm_eps=1e-5, rope_theta=10000.0,
)  # fmt: skip
HEAD = HeadConfig(replace(TARGET, num_layers=1), 20, (2, 4, 5), 16, trained_context=128, target="example/target")


def random_tensors(config: HeadConfig, seed: int = 0) -> dict[str, RawTensor]:
    rng = np.random.default_rng(seed)
    values = {name: rng.standard_normal(shape, np.float32) for name, shape in head_tensors(config).items()}
    return {name: RawTensor("F32", 1 + 0.1 * v if "norm" in name else 0.3 * v) for name, v in values.items()}


def random_ids(config: HeadConfig, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sort(rng.permutation(config.layer.vocab_size)[: config.draft_vocab_size]).astype(np.int64)


def save_tiny(folder: Path, config: HeadConfig = HEAD, notes: HeadNotes | None = None) -> Path:
    """In the speculators layout, by Slipstream."""
    everything = config.draft_vocab_size == config.layer.vocab_size
    ids = None if everything else random_ids(config)
    save_head(folder, config, random_tensors(config), ids, "fp32", notes)
    return folder


def original_values(config: HeadConfig = HEAD) -> dict[str, Any]:
    """config.json as SpecForge writes it."""
    layer = config.layer
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": layer.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.num_heads,
        "num_key_value_heads": layer.num_kv_heads,
        "head_dim": layer.head_dim,
        "max_position_embeddings": layer.context_length,
        "rms_norm_eps": layer.norm_eps,
        "rope_theta": layer.rope_theta,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }


def original_tensors(config: HeadConfig = HEAD, layer: str = "midlayer.", prefix: str = "") -> dict[str, torch.Tensor]:
    ids = torch.from_numpy(random_ids(config))
    in_draft = torch.zeros(config.layer.vocab_size, dtype=torch.bool)
    in_draft[ids] = True
    named = {name.replace("layers.0.", layer): to_torch(t) for name, t in random_tensors(config).items()}
    outside = {"lm_head.weight": named.pop("lm_head.weight"), "d2t": ids - torch.arange(len(ids)), "t2d": in_draft}
    return {prefix + name: tensor for name, tensor in named.items()} | outside


def save_original(folder: Path, values: dict[str, Any] | None = None, tensors: dict | None = None) -> Path:
    """In the original layout. Changed values and tensors may be given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(original_values() if values is None else values))
    save_file(original_tensors() if tensors is None else tensors, folder / "model.safetensors")
    return folder
