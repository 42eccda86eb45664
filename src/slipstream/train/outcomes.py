"""BatchOutcome: loss and acceptance of a batch of texts; TrainableDrafter: what the trainer needs of a drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from slipstream.train.batches import TextBatch
from slipstream.train.forward import TargetStates

StatesOf = Callable[[TextBatch], TargetStates]


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """All on the device: reading a number would wait for it."""

    losses: torch.Tensor  # [steps] sums over rows, weighted
    weights: torch.Tensor  # [steps] the weights' sums
    reached: torch.Tensor  # [drafted tokens, kinds] chains that are right up to this token
    begun: torch.Tensor  # [drafted tokens, kinds] chains that have a token here

    def loss(self, decay: float) -> torch.Tensor:
        """The mean over steps; later ones weigh less."""
        by_step = decay ** torch.arange(len(self.losses), device=self.losses.device)
        return ((self.losses / self.weights.clamp_min(1e-6)) * by_step).sum() / by_step.sum()


class TrainableDrafter(Protocol):
    """Something that drafts, in training."""

    step_decay: float  # weight of a step's loss against the one before it
    begins_usable: bool  # it drafts before the first step: what it does then is worth knowing, and may be the best

    @property
    def module(self) -> torch.nn.Module: ...

    def __call__(self, batch: TextBatch, states_of: StatesOf | None = None) -> BatchOutcome:
        """`states_of`: where the target's states are known already."""
        ...


@torch.no_grad()
def chains(batch: TextBatch, matches: Sequence[torch.Tensor], num_kinds: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`reached` and `begun` of an outcome; `matches` [rows] bool of each drafted token: is it the target's choice?

    A chain reaches token k if it is right there, and the token before it, one position earlier, was reached. Only rows
    of full weight are counted: a user's text is not drafted."""
    is_row = torch.zeros(batch.tokens.numel(), dtype=torch.bool, device=batch.rows.device)
    is_row[batch.rows] = batch.weights >= 1.0
    right, there = is_row, is_row
    reached, begun = [], []
    for number, match in enumerate(matches):
        if number:
            right, there = is_row & _shifted(right), is_row & _shifted(there)
        hit = torch.zeros_like(is_row)
        hit[batch.rows] = match
        right = right & hit
        reached.append(_by_kind(right[batch.rows], batch.kinds, num_kinds))
        begun.append(_by_kind(there[batch.rows], batch.kinds, num_kinds))
    return torch.stack(reached), torch.stack(begun)


def _by_kind(flags: torch.Tensor, kinds: torch.Tensor, num_kinds: int) -> torch.Tensor:
    return torch.zeros(num_kinds, device=flags.device).index_add_(0, kinds, flags.float())


def _shifted(flags: torch.Tensor) -> torch.Tensor:
    """One position on. A text never ends with a row that counts, so nothing passes from one to the next."""
    return F.pad(flags[:-1], (1, 0))
