"""Attention of a draft's step, and its gradients: the quick way beside one softmax over everything that is seen."""

from __future__ import annotations

import pytest
import torch

from slipstream.train.attention import draft_attention, in_one_softmax

TEXTS, HEADS, LENGTH, WIDTH = 2, 3, 9, 8


@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_output_and_gradients_are_those_of_one_softmax(num_steps: int) -> None:
    torch.manual_seed(num_steps)
    parts = [torch.randn(TEXTS, HEADS, LENGTH, WIDTH, requires_grad=True) for _ in range(3 + 2 * num_steps)]
    pull = torch.randn(TEXTS, HEADS, LENGTH, WIDTH)
    q, keys, values, *flat = parts
    steps = list(zip(flat[::2], flat[1::2], strict=True))
    ours, theirs = (way(q, (keys, values), steps) for way in (draft_attention, in_one_softmax))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for own, expected in zip(
        torch.autograd.grad(ours, parts, pull), torch.autograd.grad(theirs, parts, pull), strict=True
    ):
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-4)


def test_a_draft_sees_the_text_up_to_where_it_began_and_itself() -> None:
    """By hand: with equal scores, the mean of the values that are seen."""
    q = torch.zeros(1, 1, 3, 8)
    values, own = (torch.arange(n, n + 3.0)[None, None, :, None].expand(1, 1, 3, 8) for n in (0, 10))
    for way in (draft_attention, in_one_softmax):
        found = way(q, (q, values), [(q, own)])[0, 0, :, 0]
        assert found.tolist() == pytest.approx([(0 + 10) / 2, (0 + 1 + 11) / 3, (0 + 1 + 2 + 12) / 4])
