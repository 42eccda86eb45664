"""The loss that is made piece by piece is the plain one, with the same gradients."""

from __future__ import annotations

import pytest
import torch

from slipstream.train import losses
from slipstream.train.losses import soft_cross_entropy


def _plain(hidden: torch.Tensor, weight: torch.Tensor, shares: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return (-(shares * (hidden @ weight.T).log_softmax(-1)).sum(-1) * rows).sum()


@pytest.mark.parametrize("piece_bytes", [1 << 28, 4 * 40 * 3])
def test_loss_and_gradients_are_those_of_the_plain_way(monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(losses, "_PIECE_BYTES", piece_bytes)
    torch.manual_seed(0)
    shares = torch.randn(17, 40).softmax(-1) * torch.rand(17, 1)  # less than 1 together: some is outside
    rows = torch.rand(17)
    ours = [torch.randn(17, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)]
    plain = [part.detach().clone().requires_grad_() for part in ours]
    loss, best = soft_cross_entropy(ours[0], ours[1], shares.__getitem__, rows)
    expected = _plain(plain[0], plain[1], shares, rows)
    (loss * 0.5).backward()
    (expected * 0.5).backward()
    torch.testing.assert_close(loss, expected)
    assert torch.equal(best, (plain[0] @ plain[1].T).argmax(-1))
    for own, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(own.grad, theirs.grad)
