"""Ops: a decoder's forward pass, as a device runs it. One implementation per kind of device.

`reference` is plain torch and runs anywhere; the others are measured and tested against it. `LayerSteps` are as large
as the largest piece that some device runs as one kernel. `EagerOps` also run a draft head and choose tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from slipstream.backends.torch.batch import Batch
from slipstream.core.protocols import Extension, Logits
from slipstream.core.sampling import Sampling
from slipstream.models.config import DecoderConfig
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.quantised import Fp8Tensor, QuantisedTensor

Weight = torch.Tensor | QuantisedTensor | Fp8Tensor  # [outputs, inputs]


@dataclass(frozen=True, slots=True)
class Linear:
    """A packed weight of shape [outputs, inputs]."""

    data: torch.Tensor  # packed as `Ops.pack` does
    outputs: int
    inputs: int
    bias: torch.Tensor | None = None  # [outputs] float32
    scale: torch.Tensor | None = None  # [outputs] float32, of weights in FP8: `data` is then as `kernels.fp8` packs it

    @property
    def num_bytes(self) -> int:
        """Bytes that a product reads."""
        return self.data.nbytes + (0 if self.scale is None else self.scale.nbytes)

    def numbers(self) -> Iterator[torch.Tensor]:
        """All tensors of floats, to check whether they are finite."""
        yield self.data if self.scale is None else self.scale
        if self.bias is not None:
            yield self.bias


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm: x / rms(x) * gain."""

    gain: torch.Tensor  # [width] float32
    eps: float


@dataclass(slots=True)
class Hidden:
    """The residual stream, and what a device may prepare for the norm that reads it next."""

    x: torch.Tensor  # [rows, width]
    scaled: torch.Tensor | None = None  # [rows, width] x * gain
    squares: torch.Tensor | None = None  # [norms to come, rows] int64: the sums of x * x, once x is complete

    def take(self, rows: torch.Tensor) -> Hidden:
        """These rows of x, with nothing prepared for the norm unless they are all rows."""
        return self if rows.shape[0] == self.x.shape[0] else Hidden(self.x[rows])


@dataclass(frozen=True, slots=True)
class QKNorm:
    query: torch.Tensor  # [head_dim]
    key: torch.Tensor  # [head_dim]


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotation by position; rows are positions."""

    cosine: torch.Tensor  # [positions, head_dim / 2] float32
    sine: torch.Tensor  # [positions, head_dim / 2] float32


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of a decoder layer."""

    attention_norm: Norm
    qkv: Linear
    qk_norm: QKNorm | None
    output: Linear
    mlp_norm: Norm
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer of the KV pool."""

    keys: torch.Tensor  # [cells, kv_heads, head_dim], or codes as `coded_cache` has them
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Features:
    """Where a forward pass writes its hidden states: those before layer `layers[k]` to the k-th part of `out`."""

    layers: tuple[int, ...]
    out: torch.Tensor  # [rows, len(layers) * width]

    def take(self, layer: int, x: torch.Tensor) -> None:
        for k, wanted in enumerate(self.layers):
            if wanted == layer:
                self.out[: len(x), k * x.shape[1] : (k + 1) * x.shape[1]] = x


@dataclass(frozen=True, slots=True)
class Stack:
    """The weights of a decoder."""

    config: DecoderConfig
    embedding: Linear
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: Linear
    rope: RopeTable


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a forward pass gives for the rows whose logits are wanted."""

    logits: torch.Tensor  # [outputs, vocab] float32
    likeliest: torch.Tensor | None = None  # [outputs] the token of the largest, if it was looked for; -1: not finite


@dataclass(frozen=True, slots=True)
class StackCache:
    """Keys and values of all layers."""

    keys: torch.Tensor  # [layers, cells, kv_heads, head_dim], or codes
    values: torch.Tensor

    def of(self, layer: int) -> LayerCache:
        return LayerCache(self.keys[layer], self.values[layer])


class Rows(Protocol):
    """The rows of one forward, as all ops read them. A batch for one kind of ops has more fields."""

    @property
    def tokens(self) -> torch.Tensor:
        """[rows]"""
        ...

    @property
    def logit_rows(self) -> torch.Tensor:
        """[outputs] int64, rows whose logits are wanted."""
        ...


B = TypeVar("B", bound=Rows)  # the batches that a kind of ops runs
BatchOf = TypeVar("BatchOf", bound=Rows, contravariant=True)  # the same, in parameters only
BatchIn = TypeVar("BatchIn", bound=Rows, covariant=True)  # the same, in attributes only


@dataclass(frozen=True, slots=True)
class LayerStep(Generic[BatchIn]):
    """What a layer needs besides its weights, in one forward."""

    rope: RopeTable
    batch: BatchIn
    config: DecoderConfig
    cache: LayerCache


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A draft head: its weights, and the keys and values of its layer."""

    config: HeadConfig
    feature_norms: tuple[Norm, ...]  # of equal parts of the features, in their order; none: they are read as they are
    fuse: Linear  # features to hidden
    embedding: Linear
    token_norm: Norm
    layer: Layer  # its `attention_norm` is that of the features
    final_norm: Norm
    logits: Linear
    rope: RopeTable
    token_ids: torch.Tensor  # [draft vocabulary] int64, the target's
    cache: LayerCache


@dataclass(frozen=True, slots=True)
class ChainChoice:
    """How the tokens of one chain are chosen. Temperature 0: the likeliest; else by the target's noise."""

    steps: int  # how many, at most
    temperature: float
    keys: Sequence[int]  # of the noise, for each step of the longest chain
    least_chance: float  # it goes on while the product of its tokens' probabilities is at least this


class Ops(Protocol[BatchOf]):
    """What a decoder needs of a kind of device."""

    name: str
    activation_dtype: torch.dtype
    batch_invariant: bool
    takes_quantised: bool  # whether `pack` takes quantised weights as they are
    takes_fp8: bool  # the same of weights in FP8

    def pack(self, weight: Weight | Sequence[Weight], bias: torch.Tensor | None = None) -> Linear:
        """Prepares a weight [outputs, inputs], or the parts of one that follow each other, for many calls."""
        ...

    def first_outputs(self, weight: Linear, count: int) -> Linear:
        """The first `count` outputs of a packed weight, a multiple of 16. Shares its memory."""
        ...

    def forward(self, stack: Stack, batch: BatchOf, cache: StackCache, features: Features | None) -> Outputs:
        """Runs the tokens through the whole decoder."""
        ...


class LayerSteps(Protocol[BatchOf]):
    """The steps of a layer, for ops that run them one by one. `then` is the norm that will read the residual stream
    next: a device can prepare for it.
    """

    def qkv(
        self, hidden: Hidden, norm: Norm, weight: Linear, qk_norm: QKNorm | None, step: LayerStep[BatchOf]
    ) -> torch.Tensor:
        """linear(norm(x)), queries and keys normalised and rotated; keys and values go into the cache.

        [rows, heads * head_dim or more], queries first.
        """
        ...

    def attend(self, qkv: torch.Tensor, batch: BatchOf, config: DecoderConfig, cache: LayerCache) -> torch.Tensor:
        """[rows, heads * head_dim], of what `qkv` gave"""
        ...

    def gate(self, hidden: Hidden, norm: Norm, gate_up: Linear) -> torch.Tensor:
        """silu(gate) * up of linear(norm(x)), gates first"""
        ...

    def add(self, x: torch.Tensor, weight: Linear, hidden: Hidden, then: Norm) -> None:
        """Adds linear(x) to the residual stream, in place."""
        ...


def run_layers(
    ops: LayerSteps[B], hidden: Hidden, stack: Stack, batch: B, cache: StackCache, features: Features | None
) -> None:
    """The layers, one after another."""
    following = [*(layer.attention_norm for layer in stack.layers[1:]), stack.final_norm]
    for i, (layer, next_norm) in enumerate(zip(stack.layers, following, strict=True)):
        if features:
            features.take(i, hidden.x)
        run_layer(ops, hidden, layer, LayerStep(stack.rope, batch, stack.config, cache.of(i)), next_norm)
    if features:
        features.take(len(stack.layers), hidden.x)


def run_layer(ops: LayerSteps[B], hidden: Hidden, layer: Layer, step: LayerStep[B], then: Norm) -> None:
    """A layer, step by step. `then`: the norm of the next one."""
    qkv = ops.qkv(hidden, layer.attention_norm, layer.qkv, layer.qk_norm, step)
    attended = ops.attend(qkv, step.batch, step.config, step.cache)
    ops.add(attended, layer.output, hidden, then=layer.mlp_norm)
    ops.add(ops.gate(hidden, layer.mlp_norm, layer.gate_up), layer.down, hidden, then=then)


def parts_of(weight: Weight | Sequence[Weight]) -> Sequence[Weight]:
    return [weight] if isinstance(weight, Weight) else weight


def joined(weight: Weight | Sequence[Weight]) -> torch.Tensor:
    """The parts of a weight as one tensor, for ops that take floats only."""
    parts = parts_of(weight)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    assert len(tensors) == len(parts)
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


class EagerOps(ABC):
    """What eager forwards need besides `Ops`: the steps of a draft head, and the choice of a token."""

    activation_dtype: torch.dtype
    takes_quantised = False
    takes_fp8 = False
    drafts_chains = False

    @abstractmethod
    def lookup(self, table: Linear, tokens: torch.Tensor) -> torch.Tensor:
        """[tokens, width]"""
        ...

    @abstractmethod
    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """[rows, width], as x is"""
        ...

    @abstractmethod
    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """[rows, outputs], for x [rows, inputs]"""
        ...

    @abstractmethod
    def head_layer(self, head: DraftHead, token: torch.Tensor, x: torch.Tensor, batch: Batch) -> None:
        """x [rows, hidden] through the layer of a draft head, in place. The layer reads the norms of `token` [rows,
        hidden] and of `x` side by side.
        """
        ...

    def read_features(self, head: DraftHead, features: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The head's outputs [rows, hidden] for tokens of the text, each after the target's features before it."""
        if head.feature_norms:
            parts = zip(features.chunk(len(head.feature_norms), dim=1), head.feature_norms, strict=True)
            features = torch.cat([self.norm(part.contiguous(), norm) for part, norm in parts], dim=1)
        return self.read_tokens(head, self.linear(features.contiguous(), head.fuse), batch)

    def read_tokens(self, head: DraftHead, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The same with `x` [rows, hidden] in place of the fused features. Overwrites `x`."""
        self.head_layer(head, self.lookup(head.embedding, batch.tokens), x, batch)
        return self.norm(x, head.final_norm) if head.config.norm_output else x

    def draft_chains(
        self, head: DraftHead, features: torch.Tensor, batch: Batch, choices: Sequence[ChainChoice]
    ) -> list[Extension]:
        """Drafts chains of a head's own choices, if `drafts_chains`. The first rows of `batch` are tokens of the text,
        which go with `features` as in `read_features`; `logit_rows` has the last of each chain. The rows of all steps
        but the first come after them, step by step.
        """
        raise NotImplementedError("the host chooses each token here: read step by step")

    def chosen(self, logits: Logits, sampling: Sampling, position: int) -> int | None:
        """The target's own token for a row of logits [vocab]; None if the host has to choose it."""
        return None
