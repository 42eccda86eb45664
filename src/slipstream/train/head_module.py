"""HeadModule: a draft head with weights that can be trained. Names of its tensors are those of head files.

What it computes is described at `HeadConfig`; `backends.torch` runs the same forward in the engine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from slipstream.backends.torch.reference import rotated
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.config import DecoderConfig
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.train.attention import KeysValues, draft_attention
from slipstream.train.forward import Rope, TargetForward

_OWN_SCORE = 5.0  # of a token with itself in attention, at first: about half the weight among a hundred and fifty


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class HeadAttention(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self._config = config
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, rope: Rope, past: list[KeysValues]) -> torch.Tensor:
        """`x` [texts, length, 2 * hidden] by where drafts began; `past`: of the steps before it. Adds its own."""
        texts, length, _ = x.shape
        q = rotated(self._heads(self.q_proj(x)), *rope)
        k = rotated(self._heads(self.k_proj(x)), *rope)
        past.append((self._repeated(k), self._repeated(self._heads(self.v_proj(x)))))
        out = draft_attention(q, past[0], past[1:])
        return torch.as_tensor(self.o_proj(out.transpose(1, 2).reshape(texts, length, -1)))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, self._config.head_dim).transpose(1, 2)

    def _repeated(self, x: torch.Tensor) -> torch.Tensor:
        """A head of keys for each of queries."""
        return x.repeat_interleave(self._config.num_heads // self._config.num_kv_heads, dim=1)


class HeadMlp(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)))


class HeadLayer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.norm_eps)
        self.hidden_norm = RmsNorm(config.hidden_size, config.norm_eps)
        self.self_attn = HeadAttention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.norm_eps)
        self.mlp = HeadMlp(config)


class HeadModule(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        layer, eps = config.layer, config.layer.norm_eps
        self.config = config
        if config.feature_norm == "all":
            self.input_norm = RmsNorm(config.features_size, eps)
        elif config.feature_norm == "each":
            self.fc_norm = nn.ModuleList(RmsNorm(config.target_hidden_size, eps) for _ in config.feature_layers)
        self.fc = nn.Linear(config.features_size, layer.hidden_size, bias=False)
        self.layers = nn.ModuleList([HeadLayer(layer)])
        self.norm = RmsNorm(layer.hidden_size, eps)
        self.lm_head = nn.Linear(layer.hidden_size, config.draft_vocab_size, bias=False)

    @property
    def layer(self) -> HeadLayer:
        return cast(HeadLayer, self.layers[0])

    def fused(self, features: torch.Tensor) -> torch.Tensor:
        """[texts, length, hidden], of features [texts, length, feature layers * target's hidden]."""
        if self.config.feature_norm == "all":
            features = self.input_norm(features)
        elif self.config.feature_norm == "each":
            parts = torch.split(features, self.config.target_hidden_size, dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return torch.as_tensor(self.fc(features))

    def forward(self, fused: torch.Tensor, embedded: torch.Tensor, rope: Rope, past: list[KeysValues]) -> torch.Tensor:
        """One step of drafts from all positions; `fused`, `embedded` and the output are [texts, length, hidden]."""
        layer = self.layer
        normed = layer.hidden_norm(fused)
        residual = normed if self.config.norm_before_residual else fused
        h = residual + layer.self_attn(torch.cat((layer.input_layernorm(embedded), normed), dim=-1), rope, past)
        return torch.as_tensor(h + layer.mlp(layer.post_attention_layernorm(h)))

    def handed_on(self, output: torch.Tensor) -> torch.Tensor:
        """What the next step reads in place of fused features."""
        return self.norm(output) if self.config.norm_output else output

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        """[..., draft vocabulary]"""
        return torch.as_tensor(self.lm_head(self.norm(output)))


def head_config(
    target: Checkpoint, feature_layers: tuple[int, ...], draft_vocab_size: int, trained_context: int
) -> HeadConfig:
    """A head for this target: one layer of its shape, without what only some families have."""
    layer = replace(
        target.config, architecture="llama", num_layers=1, qkv_bias=False, qk_norm=False, sliding_window=None,
        tied_head=False,
    )  # fmt: skip
    return HeadConfig(
        layer, draft_vocab_size, feature_layers, target.config.hidden_size,
        trained_context=trained_context, target=target.name,
    )  # fmt: skip


@torch.no_grad()
def begin_new(head: HeadModule, target: TargetForward, draft_ids: torch.Tensor) -> None:
    """First weights: the target's last norm and its rows of the draft vocabulary. With its last layer too, a head
    learned more slowly than with random weights (loss 2.77 against 2.65 after 50 steps)."""
    head.norm.weight.copy_(target.final_gain)
    head.lm_head.weight.copy_(target.output_weight[draft_ids])
    _attend_to_own_token(head.layer.self_attn, head.config.layer)


def _attend_to_own_token(attention: HeadAttention, config: DecoderConfig) -> None:
    """Half of the heads begin with queries like their keys, made from the embedding alone: they see their own token.
    It is the one thing that the features don't have, and a head of even attention sees little of it among hundreds."""
    hidden, width = config.hidden_size, config.head_dim
    group = config.num_heads // config.num_kv_heads
    spread = (_OWN_SCORE / (hidden * width**0.5)) ** 0.5
    for head in range((config.num_kv_heads + 1) // 2):
        weight = torch.randn(width, hidden, device=attention.k_proj.weight.device) * spread
        for rows, part in ((width, attention.k_proj), (width * group, attention.q_proj)):
            at = slice(head * rows, (head + 1) * rows)
            part.weight[at, :hidden] = weight.repeat(rows // width, 1)
            part.weight[at, hidden:] = 0
