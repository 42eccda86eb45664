"""Products: what the kernels in CUDA C++ are asked for, whichever takes the product."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import torch

from slipstream.backends.torch.cuda.batch import DeviceRows
from slipstream.backends.torch.cuda.kernels.nvrtc import TensorMap, paired_map, tensor_map
from slipstream.backends.torch.kv_pool import PAGE_SIZE
from slipstream.backends.torch.ops import Hidden, LayerStep, Linear, Norm
from slipstream.models.config import DecoderConfig

COLUMNS = 64  # inputs that are brought at a time: 128 bytes a row
POINTER, INT = ctypes.c_void_p, ctypes.c_int
Kind = Literal["plain", "gated", "qkv", "added"]
KINDS: dict[Kind, int] = {"plain": 0, "gated": 1, "qkv": 2, "added": 3}  # as products.cuh has them


class CResidual(ctypes.Structure):
    """`struct Residual` of products.cuh."""

    _fields_ = [(name, POINTER) for name in ("x", "scaled", "gain", "squares")]


class CCache(ctypes.Structure):
    """`struct Cache` of streamed.cu."""

    _fields_ = [
        *((n, POINTER) for n in ("position", "slot", "page_from", "pages", "cosine", "sine", "keys", "values")),
        *((n, INT) for n in ("heads", "kv_heads", "head_dim", "page_size")),
    ]


@dataclass(frozen=True, slots=True)
class Shares:
    """In how many parts a sum is added up, and inputs of each."""

    count: int
    inputs: int


@dataclass(frozen=True, slots=True)
class Product:
    kind: Kind
    x: torch.Tensor | None  # [rows, inputs]
    weight: Linear
    shares: Shares
    out: torch.Tensor
    hidden: Hidden
    norm: Norm  # of x; with `added` that of the sum
    place: CCache = field(default_factory=CCache)
    residual: CResidual = field(default_factory=CResidual)

    @property
    def outputs(self) -> int:
        """A gate and its up have one."""
        return self.weight.outputs // (2 if self.kind == "gated" else 1)


class Products(ABC):
    """Results go to torch's current stream, so graphs capture them. Weights and rows are in 16 bits."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def _describe(self, tensor: torch.Tensor, lines: int, depth: int = 1) -> TensorMap:
        return tensor_map(tensor, (lines, COLUMNS), depth)

    def _describe_pairs(self, tensor: torch.Tensor, pairs: int) -> TensorMap:
        return paired_map(tensor, COLUMNS, pairs)

    def takes(self, weight: Linear) -> bool:
        return weight.scale is None

    @abstractmethod
    def _launch(self, product: Product) -> None: ...

    def plain(self, hidden: Hidden, norm: Norm, weight: Linear, shares: Shares, out: torch.Tensor) -> None:
        """linear(norm(x))"""
        self._launch(Product("plain", hidden.scaled, weight, shares, out, hidden, norm))

    def gated(self, hidden: Hidden, norm: Norm, weight: Linear, out: torch.Tensor) -> None:
        """SwiGLU of linear(norm(x)), gates first"""
        self._launch(Product("gated", hidden.scaled, weight, Shares(1, weight.inputs), out, hidden, norm))

    def qkv(
        self, hidden: Hidden, norm: Norm, weight: Linear, step: LayerStep[DeviceRows], shares: Shares,
        queries: torch.Tensor,
    ) -> None:  # fmt: skip
        """Rotated queries; keys and values go into the cache."""
        batch, config, rope, cache = step.batch, step.config, step.rope, step.cache
        tensors = (
            batch.position, batch.slot, batch.page_from, batch.pages, rope.cosine, rope.sine, cache.keys, cache.values,
        )  # fmt: skip
        sizes = (config.num_heads, config.num_kv_heads, config.head_dim, PAGE_SIZE)
        place = CCache(*(tensor.data_ptr() for tensor in tensors), *sizes)
        self._launch(Product("qkv", hidden.scaled, weight, shares, queries, hidden, norm, place=place))

    def add(self, x: torch.Tensor, weight: Linear, hidden: Hidden, then: Norm, shares: Shares) -> None:
        """Adds linear(x) to the residual stream, and readies it for the norm that reads it next."""
        assert hidden.x.dtype == self._dtype and hidden.scaled is not None and hidden.squares is not None
        tensors = (hidden.x, hidden.scaled, then.gain, hidden.squares)
        residual = CResidual(*(tensor.data_ptr() for tensor in tensors))
        self._launch(Product("added", x, weight, shares, hidden.x, hidden, then, residual=residual))


def takes_sizes(config: DecoderConfig, dtype: torch.dtype) -> bool:
    """Whether all inputs of such a model come in whole pieces, of 16 bits each."""
    sizes = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    return not any(size % COLUMNS for size in sizes) and dtype in (torch.bfloat16, torch.float16)
