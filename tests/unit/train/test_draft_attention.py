"""Attention of a draft's step, and its gradients, beside the plain way: one softmax over everything that is seen."""

from __future__ import annotations

import pytest
import torch

from slipstream.train.attention import draft_attention

TEXTS, HEADS, LENGTH, WIDTH = 2, 3, 9, 8


def plain(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *steps: torch.Tensor) -> torch.Tensor:
    scores = (q @ keys.transpose(-1, -2)).masked_fill(~torch.ones(LENGTH, LENGTH).tril().bool(), float("-inf"))
    own = [(q * key).sum(-1, keepdim=True) for key in steps[::2]]
    shares = (torch.cat([scores, *own], -1) * WIDTH**-0.5).softmax(-1)
    out = shares[..., :LENGTH] @ values
    for i, value in enumerate(steps[1::2]):
        out = out + shares[..., LENGTH + i, None] * value
    return out


@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_output_and_gradients_are_those_of_one_softmax(num_steps: int) -> None:
    torch.manual_seed(num_steps)
    parts = [torch.randn(TEXTS, HEADS, LENGTH, WIDTH, requires_grad=True) for _ in range(3 + 2 * num_steps)]
    pull = torch.randn(TEXTS, HEADS, LENGTH, WIDTH)
    q, keys, values, *steps = parts
    ours = draft_attention(q, (keys, values), list(zip(steps[::2], steps[1::2], strict=True)))
    theirs = plain(*parts)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for own, expected in zip(
        torch.autograd.grad(ours, parts, pull), torch.autograd.grad(theirs, parts, pull), strict=True
    ):
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-4)
