"""Tiny random models of each family, made by transformers and saved as folders, and ways to load them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from unittest import mock

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers

import slipstream
from slipstream.backends.torch import load as torch_backend
from slipstream.backends.torch.model import TorchModel
from slipstream.backends.torch.options import TorchOptions
from slipstream.core.protocols import ScoreRequest
from slipstream.core.tree import ROOT
from slipstream.models import open_checkpoint
from unit.models import model_files

CONTEXT = 512
# Sizes that are no multiples of 16, so that the last block of every packed weight is a partial one.
SIZES = {
    "vocab_size": 131,
    "hidden_size": 40,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.25,  # far from uniform logits
    "bos_token_id": 96,
    "eos_token_id": 96,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama2-mha": ("Llama", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    "llama3-scaled-tied": ("Llama", {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "mistral-window-8": ("Mistral", {"sliding_window": 8, "tie_word_embeddings": False}),
    "qwen2-bias-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3-qk-norm": ("Qwen3", {"head_dim": 24, "num_key_value_heads": 1, "tie_word_embeddings": False}),
}


def character_tokenizer() -> tokenizers.Tokenizer:
    """One token for each printable ASCII character, newline and space: another vocabulary than any real one."""
    alphabet = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"]
    tokenizer = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def make_model(family: str, **changes: object) -> transformers.PreTrainedModel:
    """A random model in float32, always the same. Norms and biases are random too: leaving one out would show."""
    kind, own = FAMILIES[family]
    torch.manual_seed(sorted(FAMILIES).index(family))
    model = getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(**(SIZES | own | changes))
    )
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "norm" in name:
                values.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                values.normal_(0, 0.5)
    return model.eval()


def save_folder(model: transformers.PreTrainedModel, folder: Path, max_shard_size: str = "1GB") -> Path:
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    character_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


def save_quantised(architecture: str, kind: str, folder: Path) -> Path:
    """A random GGUF file with all matrices in one of ggml's types."""
    tensors = model_files.gguf_tensors(architecture, np.random.default_rng(0))
    for name, values in tensors.items():
        if "norm" not in name:
            values *= 0.3  # far from uniform logits, and far from a softmax of one key
    path = folder / f"{architecture}-{kind}.gguf"
    model_files.write_gguf(
        path, architecture=architecture, tensors=tensors, quantisation=gguf.GGMLQuantizationType[kind],
        metadata={f"{architecture}.context_length": CONTEXT},
    )  # fmt: skip
    return path


def load_native(spec: str | Path, **options: object) -> TorchModel:
    """On the compiled kernels, which must be there: these tests would otherwise test something else."""
    model = torch_backend.load_model(open_checkpoint(spec), TorchOptions(device="cpu", **options))
    assert model.info.backend == "torch/native"
    return model


def load_reference(spec: str | Path, **options: object) -> TorchModel:
    """In plain torch, as on a machine without a C compiler."""
    with mock.patch.object(torch_backend, "kernels", return_value=None):
        return torch_backend.load_model(open_checkpoint(spec), TorchOptions(device="cpu", **options))


def last_row(model: TorchModel, tokens: list[int]) -> np.ndarray:
    """[vocab] logits after `tokens`."""
    sequence = model.open()
    row = model.score([ScoreRequest(sequence, tokens)])[0].row(ROOT).copy()
    sequence.close()
    return row


@functools.cache
def load_smollm2() -> slipstream.LoadedModel:
    """The built-in model, once for all tests of a run."""
    return slipstream.load_model("smollm2-135m", TorchOptions(device="cpu"))
