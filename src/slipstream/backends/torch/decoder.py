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
    QKNorm,
    RopeTable,
    Rows,
    Stack,
    StackCache,
    Weight,
)
from slipstream.models.checkpoint import Checkpoint, RawTensor
from slipstream.models.config import DecoderConfig
from slipstream.models.quantised import QuantisedTensor

B = TypeVar("B", bound=Rows)


@dataclass(frozen=True, slots=True)
class Decoder(Generic[B]):
    """Weights and the forward pass. Stateless: the cache is an argument."""

    config: DecoderConfig
    ops: Ops[B]
    embedding: Linear
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: Linear
    rope: RopeTable

    def forward(self, batch: B, pool: KVPool, features: Features | None = None) -> torch.Tensor:
        """Writes the rows' keys and values, and returns logits [outputs, vocab] float32 of `batch.logit_rows`."""
        ops = self.ops
        hidden = ops.embed(self.embedding, batch.tokens, then=self.layers[0].attention_norm)
        stack = Stack(self.layers, self.final_norm, self.rope, self.config)
        ops.layers(hidden, stack, batch, StackCache(pool.keys, pool.values), features)
        return ops.logits(hidden.take(batch.logit_rows), self.final_norm, self.head)

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

    def read(*names: str) -> torch.Tensor:
        parts = [to_torch(checkpoint.tensor(name), device) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def weight(*names: str) -> list[Weight]:
        return [_quantised(checkpoint, ops, name) or to_torch(checkpoint.tensor(name), device) for name in names]

    def vector(name: str) -> torch.Tensor:
        return read(name).float().contiguous()

    def norm(name: str) -> Norm:
        return Norm(vector(name), config.norm_eps)

    def layer(i: int) -> Layer:
        checkpoint.release_pages()
        report(i / config.num_layers)
        at = f"model.layers.{i}."
        attention, mlp = at + "self_attn.", at + "mlp."
        projections = [f"{attention}{p}_proj" for p in "qkv"]
        bias = read(*(f"{p}.bias" for p in projections)) if config.qkv_bias else None
        norms = (
            QKNorm(vector(attention + "q_norm.weight"), vector(attention + "k_norm.weight")) if config.qk_norm else None
        )
        return Layer(
            attention_norm=norm(at + "input_layernorm.weight"),
            qkv=ops.pack(weight(*(f"{p}.weight" for p in projections)), bias),
            qk_norm=norms,
            output=ops.pack(weight(attention + "o_proj.weight")),
            mlp_norm=norm(at + "post_attention_layernorm.weight"),
            gate_up=ops.pack(weight(mlp + "gate_proj.weight", mlp + "up_proj.weight")),
            down=ops.pack(weight(mlp + "down_proj.weight")),
        )

    embedding = ops.pack(weight("model.embed_tokens.weight"))
    decoder = Decoder(
        config=config,
        ops=ops,
        embedding=embedding,
        layers=tuple(layer(i) for i in range(config.num_layers)),
        final_norm=norm("model.norm.weight"),
        head=embedding if config.tied_head else ops.pack(weight("lm_head.weight")),
        rope=rope_table(config, num_positions, device),
    )
    checkpoint.release_pages()
    return decoder


def _quantised(checkpoint: Checkpoint, ops: Ops[B], name: str) -> QuantisedTensor | None:
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
