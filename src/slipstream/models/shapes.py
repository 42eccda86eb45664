"""Random weights in the shapes of well-known models, to measure real kernels and speeds without the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slipstream.errors import UsageError
from slipstream.models.checkpoint import FloatsInMemory, RawTensor
from slipstream.models.config import DecoderConfig
from slipstream.models.tensors import expected_tensors
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.models.text.tokenizer_gguf import tokenizer_from_metadata


def _llama3(hidden: int, intermediate: int, layers: int, heads: int, head_dim: int, tied: bool) -> DecoderConfig:
    return DecoderConfig(
        architecture="llama", vocab_size=128256, hidden_size=hidden, intermediate_size=intermediate,
        num_layers=layers, num_heads=heads, num_kv_heads=8, head_dim=head_dim, context_length=131072,
        norm_eps=1e-5, rope_theta=500000.0, tied_head=tied,
    )  # fmt: skip


def _qwen25(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, tied: bool) -> DecoderConfig:
    return DecoderConfig(
        architecture="qwen2", vocab_size=151936 if tied else 152064, hidden_size=hidden, intermediate_size=intermediate,
        num_layers=layers, num_heads=heads, num_kv_heads=kv_heads, head_dim=hidden // heads, context_length=32768,
        norm_eps=1e-6, rope_theta=1000000.0, qkv_bias=True, tied_head=tied,
    )  # fmt: skip


SHAPES: dict[str, DecoderConfig] = {
    "llama-1b": _llama3(2048, 8192, 16, 32, 64, tied=True),
    "llama-3b": _llama3(3072, 8192, 28, 24, 128, tied=True),
    "llama-8b": _llama3(4096, 14336, 32, 32, 128, tied=False),
    "llama-70b": _llama3(8192, 28672, 80, 64, 128, tied=False),
    "qwen-0.5b": _qwen25(896, 4864, 24, 14, 2, tied=True),
    "qwen-1.5b": _qwen25(1536, 8960, 28, 12, 2, tied=True),
    "qwen-3b": _qwen25(2048, 11008, 36, 16, 2, tied=True),
    "qwen-7b": _qwen25(3584, 18944, 28, 28, 4, tied=False),
    "qwen-72b": _qwen25(8192, 29568, 80, 64, 8, tied=False),
    "tiny": DecoderConfig(
        architecture="llama", vocab_size=512, hidden_size=64, intermediate_size=176, num_layers=2, num_heads=4,
        num_kv_heads=2, head_dim=16, context_length=2048, norm_eps=1e-5, rope_theta=10000.0, tied_head=True,
    ),
}  # fmt: skip


class RandomCheckpoint(FloatsInMemory):
    """A Checkpoint of a known shape with random weights: one random block, repeated, so that even large models take
    only seconds to create. Its tokens are bytes.
    """

    def __init__(self, shape: str, seed: int = 0) -> None:
        if shape not in SHAPES:
            raise UsageError(f"unknown shape {shape!r}; expected one of {', '.join(SHAPES)}")
        self.name = f"synthetic-{shape}"
        self.path = Path(f"synthetic/{shape}")
        self.config = SHAPES[shape]
        self.tokenizer = _byte_tokenizer(self.path)
        self._shapes = expected_tensors(self.config)
        self._block = (np.random.default_rng(seed).standard_normal(1 << 20) * 0.02).astype(np.float32)

    def __contains__(self, tensor_name: str) -> bool:
        return tensor_name in self._shapes

    def tensor(self, tensor_name: str) -> RawTensor:
        shape = self._shapes[tensor_name]
        if "norm" in tensor_name:
            return RawTensor("F32", np.ones(shape, np.float32))
        return RawTensor("F32", self._block, repeated_to=shape)

    def weight_bytes(self) -> int:
        return 2 * sum(int(np.prod(shape)) for shape in self._shapes.values())


def _byte_tokenizer(path: Path) -> Tokenizer:
    """Text as bytes; the other ids have no text. Enough to feed a model of random weights."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": alphabet,
        "tokenizer.ggml.merges": [],
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}\n{% endfor %}",
    }
    return tokenizer_from_metadata(metadata, path)
