"""A draft head in plain torch, float32, one formula per line: what every faster implementation has to agree with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

from slipstream.models.checkpoint import RawTensor
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.draft_heads.files import HeadCheckpoint
from slipstream.models.draft_heads.layouts import head_tensors


def to_torch(raw: RawTensor) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(raw.data))
    return (tensor.view(torch.bfloat16) if raw.kind == "BF16" else tensor).float()


@dataclass
class HeadOracle:
    """One stream. `start` reads the text, `draft` goes on alone; both keep keys and values."""

    config: HeadConfig
    weights: dict[str, torch.Tensor]  # canonical names, float32
    embedding: torch.Tensor  # [vocab, hidden]: the head's own, or the target's
    token_ids: torch.Tensor  # [draft_vocab]: the target's id of each draft id
    keys: list[torch.Tensor] = field(default_factory=list)  # one per position: [kv_heads, head_dim]
    values: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, head: HeadCheckpoint, target_embedding: torch.Tensor | None = None) -> HeadOracle:
        weights = {name: to_torch(head.tensor(name)) for name in head_tensors(head.config)}
        embedding = weights["embed_tokens.weight"] if head.config.own_embedding else target_embedding
        assert embedding is not None, "the head has no embedding of its own: give the target's"
        return cls(head.config, weights, embedding.float(), torch.from_numpy(head.token_ids()))

    def draft(self, features: torch.Tensor, next_tokens: torch.Tensor, steps: int) -> list[int]:
        """The likeliest chain after a text, as target ids; see `draft_logits`."""
        return self.token_ids[self.draft_logits(features, next_tokens, steps).argmax(-1)].tolist()

    def draft_logits(self, features: torch.Tensor, next_tokens: torch.Tensor, steps: int) -> torch.Tensor:
        """Logits [steps, draft_vocab] along the likeliest chain after a text.

        `features` [length, features_size] of its positions, `next_tokens` [length] the token after each of them. Keys
        and values of what is drafted are forgotten again.
        """
        outputs, logits = self.start(features, next_tokens)
        length, chain, hidden = len(self.keys), [logits[-1]], outputs[-1]
        while len(chain) < steps:
            hidden, scores = self.row(hidden, int(self.token_ids[chain[-1].argmax()]))
            chain.append(scores)
        del self.keys[length:], self.values[length:]
        return torch.stack(chain)

    def start(self, features: torch.Tensor, next_tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the next step reads [length, hidden], and logits [length, draft_vocab], of every position."""
        fused = self.fuse(features.float())
        rows = [self.row(g, int(token)) for g, token in zip(fused, next_tokens, strict=True)]
        return torch.stack([hidden for hidden, _ in rows]), torch.stack([logits for _, logits in rows])

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Features of several layers side by side -> one vector of the head's width."""
        if self.config.feature_norm == "all":
            features = self.norm(features, "input_norm")
        if self.config.feature_norm == "each":
            parts = features.split(self.config.target_hidden_size, dim=-1)
            features = torch.cat([self.norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)], dim=-1)
        return features @ self.weights["fc.weight"].T

    def row(self, g: torch.Tensor, token: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One position: g [hidden] and the token after it -> what the next step reads, and logits."""
        normed = self.norm(g, "layers.0.hidden_norm")
        x = torch.cat([self.norm(self.embedding[token], "layers.0.input_layernorm"), normed])
        h = (normed if self.config.norm_before_residual else g) + self.attention(x)
        m = self.norm(h, "layers.0.post_attention_layernorm")
        gate, up = self.linear(m, "layers.0.mlp.gate_proj"), self.linear(m, "layers.0.mlp.up_proj")
        h = h + self.linear(functional.silu(gate) * up, "layers.0.mlp.down_proj")
        out = self.norm(h, "norm")
        return (out if self.config.norm_output else h), out @ self.weights["lm_head.weight"].T

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.config.layer
        q, k, v = (self.linear(x, f"layers.0.self_attn.{p}_proj").view(-1, layer.head_dim) for p in "qkv")
        if layer.qk_norm:
            q, k = self.norm(q, "layers.0.self_attn.q_norm"), self.norm(k, "layers.0.self_attn.k_norm")
        position = len(self.keys)
        self.keys.append(self.rotate(k, position))
        self.values.append(v)
        groups = layer.num_heads // layer.num_kv_heads
        keys = torch.stack(self.keys).repeat_interleave(groups, dim=1)  # [positions, heads, head_dim]
        values = torch.stack(self.values).repeat_interleave(groups, dim=1)
        scores = torch.einsum("hd,phd->hp", self.rotate(q, position), keys) * layer.head_dim**-0.5
        mixed = torch.einsum("hp,phd->hd", scores.softmax(-1), values)
        return self.linear(mixed.reshape(-1), "layers.0.self_attn.o_proj")

    def rotate(self, x: torch.Tensor, position: int) -> torch.Tensor:
        angles = position * torch.tensor(self.config.layer.inverse_frequencies())
        first, second = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.config.layer.norm_eps).rsqrt()
        return x * scale * self.weights[f"{name}.weight"]
