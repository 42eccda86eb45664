"""A decoder over whole texts at once; of the target: the hidden states that a head reads, the choices it learns.

The engine scores a few rows after a long cache; training reads texts from their beginning. The weights and their
layout are the engine's own (`backends.torch.decoder`), and the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from slipstream.backends.torch.batch import Batch
from slipstream.backends.torch.decoder import Decoder, load_decoder
from slipstream.backends.torch.ops import Layer, Norm
from slipstream.backends.torch.reference import ReferenceOps, rotated
from slipstream.models.checkpoint import Checkpoint

Rope = tuple[torch.Tensor, torch.Tensor]  # cosine and sine [length, head_dim / 2]
LOGIT_BYTES = 1 << 28  # of logits at a time


@dataclass(frozen=True, slots=True)
class TargetStates:
    """What the target has at each position: what a head reads, and what it learns."""

    features: torch.Tensor  # [texts, length, feature layers * hidden]
    hidden: torch.Tensor  # [texts, length, hidden], after the last norm
    norms: torch.Tensor  # [texts, length] float32: the logarithm of the sum of its logits' exponentials
    choices: torch.Tensor  # [texts, length] int64: its likeliest id


class TextOps(ReferenceOps):
    """With a norm that is one kernel in both directions."""

    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        return F.rms_norm(x.float(), norm.gain.shape, norm.gain, norm.eps).to(x.dtype)


class TargetForward:
    def __init__(self, decoder: Decoder[Batch], ops: ReferenceOps, feature_layers: Sequence[int]) -> None:
        self._decoder = decoder
        self._ops = ops
        self._feature_layers = tuple(feature_layers)

    @property
    def embedding(self) -> torch.Tensor:
        """[vocab, hidden]"""
        return self._decoder.embedding.data

    @property
    def state_widths(self) -> tuple[int, int]:
        """Of features and of hidden states."""
        hidden = self.embedding.shape[1]
        return len(self._feature_layers) * hidden, hidden

    @property
    def output_weight(self) -> torch.Tensor:
        """[vocab, hidden]"""
        return self._decoder.head.data

    @property
    def final_gain(self) -> torch.Tensor:
        """[hidden] of the last norm"""
        return self._decoder.final_norm.gain

    def rope(self, length: int, start: int = 0) -> Rope:
        """Of positions from `start`; a head rotates as its target does."""
        at = slice(start, start + length)
        return self._decoder.rope.cosine[at], self._decoder.rope.sine[at]

    @torch.no_grad()
    def __call__(self, tokens: torch.Tensor) -> TargetStates:
        """`tokens` [texts, length], as for `over_texts`."""
        hidden, kept = over_texts(self._decoder, self._ops, tokens, self._feature_layers)
        features = torch.cat([hidden[..., :0], *(kept[layer] for layer in self._feature_layers)], dim=-1)
        return TargetStates(features, hidden, *self._judged(hidden))

    def _judged(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Norms and choices; logits are the largest thing here, and are made a piece at a time."""
        norms, choices = [], []
        for part in torch.split(hidden.flatten(0, 1), max(1, LOGIT_BYTES // (4 * len(self.output_weight)))):
            logits = F.linear(part, self.output_weight).float()
            norms.append(logits.logsumexp(-1))
            choices.append(logits.argmax(-1))
        return torch.cat(norms).view(hidden.shape[:2]), torch.cat(choices).view(hidden.shape[:2])


def over_texts(
    decoder: Decoder[Batch], ops: ReferenceOps, tokens: torch.Tensor, feature_layers: Sequence[int] = ()
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Hidden states [texts, length, hidden] after the last norm, and those after the layers of `feature_layers`.

    `tokens` [texts, length]: padding stands at the ends, where no token of a text sees it."""
    x = F.embedding(tokens, decoder.embedding.data)
    mask = _window_mask(tokens.shape[1], decoder.config.sliding_window, tokens.device)
    kept = {}
    for index, layer in enumerate(decoder.layers, 1):
        x = x + _attention(decoder, ops, layer, x, mask)
        gate_up = ops.linear(ops.norm(x, layer.mlp_norm), layer.gate_up)
        x = x + ops.linear(ops.swiglu(gate_up), layer.down)
        if index in feature_layers:
            kept[index] = x
    return ops.norm(x, decoder.final_norm), kept


def _attention(
    decoder: Decoder[Batch], ops: ReferenceOps, layer: Layer, x: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    config, (texts, length, _) = decoder.config, x.shape
    qkv = ops.linear(ops.norm(x, layer.attention_norm), layer.qkv)
    heads = qkv.view(texts, length, -1, config.head_dim).transpose(1, 2)  # [texts, heads, length, head_dim]
    q, k, v = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
    if layer.qk_norm is not None:
        q = ops.norm(q, Norm(layer.qk_norm.query, config.norm_eps))
        k = ops.norm(k, Norm(layer.qk_norm.key, config.norm_eps))
    rope = decoder.rope.cosine[:length], decoder.rope.sine[:length]
    out = F.scaled_dot_product_attention(
        rotated(q, *rope), rotated(k, *rope), v, attn_mask=mask, is_causal=mask is None,
        enable_gqa=config.num_heads != config.num_kv_heads,
    )  # fmt: skip
    return ops.linear(out.transpose(1, 2).reshape(texts, length, -1), layer.output)


def load_target(
    checkpoint: Checkpoint, feature_layers: Sequence[int], device: torch.device, dtype: torch.dtype, length: int
) -> TargetForward:
    """For texts of at most `length` tokens."""
    ops = TextOps(dtype)
    return TargetForward(load_decoder(checkpoint, ops, device, length), ops, feature_layers)


def _window_mask(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """[length, length] bool; None where a row sees all before it."""
    if window is None or window >= length:
        return None
    at = torch.arange(length, device=device)
    distance = at[:, None] - at[None, :]
    return (distance >= 0) & (distance < window)
