"""A draft head, written once more in the simplest way: whole texts, no cache, float64. And random heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from slipstream.models.config import DecoderConfig
from slipstream.models.head_config import HeadConfig

Tensors = dict[str, torch.Tensor]


def random_head(
    target: DecoderConfig, draft_vocab: int, seed: int = 0, **changes: object
) -> tuple[HeadConfig, Tensors]:
    """A head for this target, with d2t and t2d. `changes` are fields of HeadConfig."""
    layer = replace(target, num_layers=1, tied_head=False, qkv_bias=False, qk_norm=False, sliding_window=None)
    first = HeadConfig(layer, draft_vocab, (0, target.num_layers // 2, target.num_layers - 1), target.hidden_size)
    config = replace(first, **changes)  # type: ignore[arg-type]
    torch.manual_seed(seed)
    h, kv = layer.hidden_size, layer.num_kv_heads * layer.head_dim
    at = "layers.0."
    shapes = {
        "fc.weight": (h, config.features_size),
        f"{at}self_attn.q_proj.weight": (layer.num_heads * layer.head_dim, 2 * h),
        f"{at}self_attn.k_proj.weight": (kv, 2 * h),
        f"{at}self_attn.v_proj.weight": (kv, 2 * h),
        f"{at}self_attn.o_proj.weight": (h, layer.num_heads * layer.head_dim),
        f"{at}mlp.gate_proj.weight": (layer.intermediate_size, h),
        f"{at}mlp.up_proj.weight": (layer.intermediate_size, h),
        f"{at}mlp.down_proj.weight": (h, layer.intermediate_size),
        "lm_head.weight": (draft_vocab, h),
    }
    norms = {f"{at}input_layernorm": h, f"{at}hidden_norm": h, f"{at}post_attention_layernorm": h, "norm": h}
    if config.feature_norm == "all":
        norms["input_norm"] = config.features_size
    if config.feature_norm == "each":
        norms |= {f"fc_norm.{k}": config.target_hidden_size for k in range(len(config.feature_layers))}
    if config.own_embedding:
        shapes["embed_tokens.weight"] = (target.vocab_size, h)
    tensors = {name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}
    tensors |= {f"{name}.weight": torch.rand(size) + 0.5 for name, size in norms.items()}
    ids = torch.randperm(target.vocab_size)[:draft_vocab].sort().values
    tensors["d2t"] = ids - torch.arange(draft_vocab)
    tensors["t2d"] = torch.zeros(target.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    return config, tensors


class HeadOracle:
    def __init__(self, config: HeadConfig, tensors: Mapping[str, torch.Tensor], embedding: torch.Tensor) -> None:
        """`embedding`: the target's."""
        self._config = config
        self._w = {name: tensor.double() for name, tensor in tensors.items() if tensor.is_floating_point()}
        self._w.setdefault("embed_tokens.weight", embedding.double())

    def logits(self, features: torch.Tensor, tokens: Sequence[int], path: Sequence[int] = ()) -> torch.Tensor:
        """[draft vocabulary] after `path`. `features` [n, width] are those of the first n of n + 1 `tokens`."""
        hidden, read = self._fused(features.double()), list(tokens[1:])
        output = self._layer(hidden, read)[-1]
        for token in path:
            hidden, read = torch.cat((hidden, output[None])), [*read, token]
            output = self._layer(hidden, read)[-1]
        normed = output if self._config.norm_output else self._norm(output, "norm")
        return normed @ self._w["lm_head.weight"].T

    def _fused(self, features: torch.Tensor) -> torch.Tensor:
        if self._config.feature_norm == "all":
            features = self._norm(features, "input_norm")
        if self._config.feature_norm == "each":
            parts = features.chunk(len(self._config.feature_layers), dim=1)
            features = torch.cat([self._norm(part, f"fc_norm.{k}") for k, part in enumerate(parts)], dim=1)
        return features @ self._w["fc.weight"].T

    def _layer(self, hidden: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        at, layer = "layers.0.", self._config.layer
        embedded = self._norm(self._w["embed_tokens.weight"][list(tokens)], f"{at}input_layernorm")
        normed = self._norm(hidden, f"{at}hidden_norm")
        x = torch.cat((embedded, normed), dim=1)
        q, k, v = ((x @ self._w[f"{at}self_attn.{p}_proj.weight"].T).unflatten(1, (-1, layer.head_dim)) for p in "qkv")
        q, k = self._rotated(q), self._rotated(k)
        group = layer.num_heads // layer.num_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * layer.head_dim**-0.5
        later = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
        seen = torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -torch.inf).softmax(-1), v).flatten(1)
        residual = normed if self._config.norm_before_residual else hidden
        x = residual + seen @ self._w[f"{at}self_attn.o_proj.weight"].T
        y = self._norm(x, f"{at}post_attention_layernorm")
        gate = torch.nn.functional.silu(y @ self._w[f"{at}mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ self._w[f"{at}mlp.up_proj.weight"].T)) @ self._w[f"{at}mlp.down_proj.weight"].T
        return self._norm(x, "norm") if self._config.norm_output else x

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._config.layer.norm_eps)
        return x * scale * self._w[f"{name}.weight"]

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        frequencies = torch.tensor(self._config.layer.inverse_frequencies(), dtype=torch.float64)
        angles = torch.arange(len(x), dtype=torch.float64)[:, None, None] * frequencies
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)
