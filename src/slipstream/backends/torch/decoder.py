"""Decoder: one Llama-family model, from a config and a checkpoint. The differences between families are in the
config.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch

from slipstream.backends.torch.kv_pool import KVPool
from slipstream.backends.torch.ops import (
    Features,
    Layer,
    Linear,
    Norm,
    Ops,
    Outputs,
    QKNorm,
    RopeTable,
    Rows,
    Stack,
    StackCache,
    Weight,
)
from slipstream.models.checkpoint import Checkpoint, RawTensor
from slipstream.models.config import DecoderConfig
from slipstream.models.quantised import Fp8Tensor, QuantisedTensor
from slipstream.models.tensors import EMBEDDING

B = TypeVar("B", bound=Rows)


@dataclass(frozen=True, slots=True)
class Decoder(Stack, Generic[B]):
    """Weights and the forward pass. Stateless: the cache is an argument."""

    ops: Ops[B]

    def forward(self, batch: B, pool: KVPool, features: Features | None = None) -> Outputs:
        """Writes the rows' keys and values into the cache. Returns the logits of `batch.logit_rows`."""
        return self.ops.forward(self, batch, StackCache(pool.keys, pool.values), features)

    def first_layers(self, count: int) -> Decoder[B]:
        """The same weights, cut after `count` layers: the model's own early exit."""
        config = replace(self.config, num_layers=count)
        return replace(self, config=config, layers=self.layers[:count])

    def first_tokens(self, count: int) -> Decoder[B]:
        """The same weights with a head for the first `count` ids only."""
        return replace(self, head=self.ops.first_outputs(self.head, count))

    def weight_bytes(self) -> int:
        """Bytes one forward reads."""
        linears = [m for layer in self.layers for m in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return sum(m.num_bytes for m in (*linears, self.head))

    def nonfinite_weight(self) -> str | None:
        """The first weight with NaN or infinity, by its name in hub files; None if all are finite."""
        for name, tensor in self._named_weights():
            if not bool(torch.isfinite(tensor).all()):
                return name
        return None

    def _named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from _named_linear("model.embed_tokens", self.embedding)
        for i, layer in enumerate(self.layers):
            yield f"model.layers.{i}.input_layernorm", layer.attention_norm.gain
            yield from _named_linear(f"model.layers.{i}.self_attn.{{q,k,v}}_proj", layer.qkv)
            yield from _named_linear(f"model.layers.{i}.self_attn.o_proj", layer.output)
            yield f"model.layers.{i}.post_attention_layernorm", layer.mlp_norm.gain
            yield from _named_linear(f"model.layers.{i}.mlp.{{gate,up}}_proj", layer.gate_up)
            yield from _named_linear(f"model.layers.{i}.mlp.down_proj", layer.down)
        yield "model.norm", self.final_norm.gain
        yield from _named_linear("lm_head", self.head)


def _named_linear(name: str, linear: Linear) -> Iterator[tuple[str, torch.Tensor]]:
    for tensor in linear.numbers():
        yield f"{name} (bias)" if tensor is linear.bias else name, tensor


def load_decoder(
    checkpoint: Checkpoint,
    ops: Ops[B],
    device: torch.device,
    num_positions: int,
    report: Callable[[float], None] = lambda share: None,
) -> Decoder[B]:
    """Reads the weights tensor by tensor, so that peak memory is the final weights and one tensor. Reports 0 to 1.

    Tokens may stand at positions below `num_positions`.
    """
    config = checkpoint.config

    def vector(name: str) -> torch.Tensor:
        return to_torch(checkpoint.tensor(name), device)

    def matrix(name: str) -> Weight:
        return _as_stored(checkpoint, ops, name) or vector(name)

    def before_layer(index: int) -> None:
        checkpoint.release_pages()
        report(index / config.num_layers)

    rope = rope_table(config, num_positions, device)
    decoder = assembled(config, ops, DecoderWeights(matrix, vector, before_layer), rope)
    checkpoint.release_pages()
    return decoder


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Where a decoder's weights come from, by their names in hub files."""

    matrix: Callable[[str], Weight]
    vector: Callable[[str], torch.Tensor]
    before_layer: Callable[[int], None] = lambda index: None


def assembled(config: DecoderConfig, ops: Ops[B], weights: DecoderWeights, rope: RopeTable) -> Decoder[B]:
    """A decoder with these weights. Gradients pass through it to the weights if the ops support gradients."""

    def norm(name: str) -> Norm:
        return Norm(weights.vector(name).float().contiguous(), config.norm_eps)

    def layer(i: int) -> Layer:
        weights.before_layer(i)
        at = f"model.layers.{i}."
        attention, mlp = at + "self_attn.", at + "mlp."
        projections = [f"{attention}{p}_proj" for p in "qkv"]
        bias = torch.cat([weights.vector(f"{p}.bias") for p in projections]) if config.qkv_bias else None
        qk_norm = [norm(f"{attention}{part}_norm.weight").gain for part in "qk"] if config.qk_norm else None
        return Layer(
            attention_norm=norm(at + "input_layernorm.weight"),
            qkv=ops.pack([weights.matrix(f"{p}.weight") for p in projections], bias),
            qk_norm=QKNorm(*qk_norm) if qk_norm else None,
            output=ops.pack(weights.matrix(attention + "o_proj.weight")),
            mlp_norm=norm(at + "post_attention_layernorm.weight"),
            gate_up=ops.pack([weights.matrix(f"{mlp}{part}_proj.weight") for part in ("gate", "up")]),
            down=ops.pack(weights.matrix(mlp + "down_proj.weight")),
        )

    embedding = ops.pack(weights.matrix(EMBEDDING))
    return Decoder(
        config=config,
        ops=ops,
        embedding=embedding,
        layers=tuple(layer(i) for i in range(config.num_layers)),
        final_norm=norm("model.norm.weight"),
        head=embedding if config.tied_head else ops.pack(weights.matrix("lm_head.weight")),
        rope=rope,
    )


def _as_stored(checkpoint: Checkpoint, ops: Ops[B], name: str) -> QuantisedTensor | Fp8Tensor | None:
    """None if the weight is floats, or has to be. An embedding in FP8 becomes floats, since its rows are looked up."""
    if ops.takes_fp8 and name != EMBEDDING:
        return checkpoint.fp8(name)
    return checkpoint.quantised(name) if ops.takes_quantised else None


def rope_table(config: DecoderConfig, num_positions: int, device: torch.device) -> RopeTable:
    frequencies = torch.tensor(config.inverse_frequencies(), dtype=torch.float32)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    return RopeTable(angles.cos().to(device), angles.sin().to(device))


def to_torch(raw: RawTensor, device: torch.device) -> torch.Tensor:
    data = raw.data if raw.data.flags.writeable else np.array(raw.data)
    tensor = torch.from_numpy(data).to(device)
    if raw.kind == "BF16":
        tensor = tensor.view(torch.bfloat16)
    if raw.repeated_to is None:
        return tensor
    size = math.prod(raw.repeated_to)
    return tensor.repeat(-(-size // len(tensor)))[:size].view(raw.repeated_to)
