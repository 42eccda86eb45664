"""Attention of a draft's step: every position of a text before its draft, and the steps of the draft itself.

Drafts begin at every position at the same time. The first part is plain causal attention, which has quick kernels. The
second is one entry for each step of the same draft, so a product by element does. The two are put together by the
logarithms of their sums; backward, the quick kernel is given the output and the sums of both, and so sees the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

_aten = torch.ops.aten
KeysValues = tuple[torch.Tensor, torch.Tensor]  # [texts, heads, length, head_dim] each


def draft_attention(q: torch.Tensor, before: KeysValues, steps: Sequence[KeysValues]) -> torch.Tensor:
    """The output [texts, heads, length, head_dim] for drafts that begin at each position.

    `before`: keys and values by position. `steps`: those of the draft's own steps after the first, by its beginning.
    """
    if not _has_quick_kernel(q):
        return in_one_softmax(q, before, steps)
    flat = [part for step in steps for part in step]
    return cast(torch.Tensor, _DraftAttention.apply(q, *before, *flat))  # type: ignore[no-untyped-call]


def _has_quick_kernel(q: torch.Tensor) -> bool:
    """On GPUs it needs an Ampere or later, 16 bits, and heads of a multiple of 8, at most 256."""
    if q.device.type == "cpu":
        return True
    fits = q.shape[-1] % 8 == 0 and q.shape[-1] <= 256 and q.dtype in (torch.bfloat16, torch.float16)
    return q.device.type == "cuda" and fits and torch.cuda.get_device_capability(q.device) >= (8, 0)


def in_one_softmax(q: torch.Tensor, before: KeysValues, steps: Sequence[KeysValues]) -> torch.Tensor:
    """The same, with a score for each pair of positions in memory."""
    keys, values = before
    length = q.shape[2]
    is_later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5).float().masked_fill(is_later, float("-inf"))
    shares = torch.cat([scores, *(_scores(q, key)[..., None] for key, _ in steps)], -1).softmax(-1).to(q.dtype)
    out = shares[..., :length] @ values
    for i, (_, value) in enumerate(steps):
        out = out + shares[..., length + i, None] * value
    return out


class _DraftAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *steps: torch.Tensor
    ) -> torch.Tensor:
        kernel = _aten._scaled_dot_product_flash_attention
        if q.device.type == "cpu":
            kernel = _aten._scaled_dot_product_flash_attention_for_cpu
        out: torch.Tensor
        out, sums, *rest = kernel(q, keys, values, 0.0, True)
        own = [_scores(q, step) for step in steps[::2]]
        whole = torch.stack([sums, *own]).logsumexp(0)
        if own:
            merged = out.float() * (sums - whole).exp()[..., None]
            for score, value in zip(own, steps[1::2], strict=True):
                merged += (score - whole).exp()[..., None] * value
            out = merged.to(out.dtype)
        ctx.rest = rest[:6]  # what the quick kernel on GPUs wants back
        ctx.save_for_backward(q, keys, values, out, whole, *steps)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (by_out,) = gradients
        q, keys, values, out, whole, *steps = ctx.saved_tensors
        if q.device.type == "cpu":
            kernel = _aten._scaled_dot_product_flash_attention_for_cpu_backward
            by_q, by_keys, by_values = kernel(by_out, q, keys, values, out, whole, 0.0, True)
        else:
            *sizes, seed, offset = ctx.rest
            kernel = _aten._scaled_dot_product_flash_attention_backward
            by_q, by_keys, by_values = kernel(by_out, q, keys, values, out, whole, *sizes, 0.0, True, seed, offset)
        by_steps: list[torch.Tensor] = []
        common = (by_out.float() * out).sum(-1)
        for key, value in zip(steps[::2], steps[1::2], strict=True):
            share = (_scores(q, key) - whole).exp()
            by_score = (share * ((by_out.float() * value).sum(-1) - common) * q.shape[-1] ** -0.5)[..., None]
            by_q = by_q + (by_score * key).to(q.dtype)
            by_steps += [(by_score * q).to(key.dtype), (share[..., None] * by_out).to(value.dtype)]
        return by_q, by_keys, by_values, *by_steps


def _scores(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    scores: torch.Tensor = (q.float() * keys).sum(-1) * q.shape[-1] ** -0.5
    return scores
