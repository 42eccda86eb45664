"""Ops: the steps of a decoder layer, as a device runs them. One implementation per kind of device.

`reference` is plain torch and runs anywhere; the others are measured and tested against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from slipstream.backends.torch.batch import Batch
from slipstream.models.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight as the ops want it, and the shape it stands for: [outputs, inputs]."""

    data: torch.Tensor  # packed as `Ops.pack` does
    outputs: int
    inputs: int
    bias: torch.Tensor | None = None  # [outputs] float32


@dataclass(frozen=True, slots=True)
class QKNorm:
    query: torch.Tensor  # [head_dim]
    key: torch.Tensor  # [head_dim]


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotation by position; rows are positions."""

    cosine: torch.Tensor  # [context, head_dim / 2] float32
    sine: torch.Tensor  # [context, head_dim / 2] float32


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer of the KV pool."""

    keys: torch.Tensor  # [cells, kv_heads, head_dim]
    values: torch.Tensor  # [cells, kv_heads, head_dim]


class Ops(Protocol):
    """`x` is [rows, width] in `activation_dtype`. What is called `_add` adds into its last argument, in place."""

    name: str
    activation_dtype: torch.dtype
    batch_invariant: bool

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Prepares a weight [outputs, inputs] for many calls."""
        ...

    def embed(self, table: Linear, tokens: torch.Tensor) -> torch.Tensor: ...

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor: ...

    def linear_add(self, x: torch.Tensor, weight: Linear, residual: torch.Tensor) -> None: ...

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor: ...

    def rope_write(
        self,
        qkv: torch.Tensor,
        batch: Batch,
        config: DecoderConfig,
        rope: RopeTable,
        norm: QKNorm | None,
        cache: LayerCache,
    ) -> None:
        """Normalises and rotates queries and keys of `qkv` in place; writes keys and values into the cache."""
        ...

    def attend(self, qkv: torch.Tensor, batch: Batch, config: DecoderConfig, cache: LayerCache) -> torch.Tensor:
        """[rows, heads * head_dim]"""
        ...
