"""Rollout: several drafting steps from every position of a text at the same time, as they happen when answering.

Step 1 at position s reads the target's features of s and the token at s + 1, and predicts the token at s + 2. Step k at
position s reads, in place of features, what step k - 1 gave at s - 1. It sees what a draft of that length sees:
entries made from features up to the position where the draft began, s - k + 1, and then one entry of each step after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812

from slipstream.train.batches import TextBatch
from slipstream.train.forward import TargetForward, TargetStates
from slipstream.train.head_module import HeadModule, KeysValues
from slipstream.train.losses import soft_cross_entropy

_LOGIT_BYTES = 1 << 28  # of the target's logits at a time
StatesOf = Callable[[TextBatch], TargetStates]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the target says at the rows of a batch."""

    shares: torch.Tensor  # [rows, draft vocabulary]: the target's probabilities; less than 1 together
    choices: torch.Tensor  # [rows] int64: the target's likeliest ids


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """All on the device: reading a number would wait for it."""

    losses: torch.Tensor  # [steps] sums over rows, weighted
    weights: torch.Tensor  # [steps] the weights' sums
    reached: torch.Tensor  # [steps, kinds] chains that are right up to this step
    begun: torch.Tensor  # [steps, kinds] chains that have a step here

    def loss(self, decay: float) -> torch.Tensor:
        """The mean over steps; later ones weigh less."""
        by_step = decay ** torch.arange(len(self.losses), device=self.losses.device)
        return ((self.losses / self.weights.clamp_min(1e-6)) * by_step).sum() / by_step.sum()


class Rollout:
    def __init__(self, head: HeadModule, target: TargetForward, draft_ids: torch.Tensor, num_kinds: int) -> None:
        self._head = head
        self._target = target
        self._draft_ids = draft_ids  # [draft vocabulary] int64
        self._num_kinds = num_kinds

    def __call__(self, batch: TextBatch, steps: int, states_of: StatesOf | None = None) -> RolloutOutcome:
        """`states_of`: where the target's states are known already."""
        texts, length = batch.tokens.shape
        states = states_of(batch) if states_of else self._target(batch.tokens)
        lesson = self._lesson(states.hidden, batch.rows)
        embedded = F.embedding(batch.tokens.roll(-1, 1), self._target.embedding)
        outputs = unroll(self._head, states.features, embedded, self._target.rope(length), steps)
        positions = batch.rows % length
        losses, weights, matches = [], [], []
        for step, output in enumerate(outputs, 1):
            counted = batch.weights * (positions >= step - 1)
            loss, match = self._judged(output.flatten(0, 1)[batch.rows], lesson, counted)
            losses.append(loss)
            weights.append(counted.sum())
            matches.append(match)
        reached, begun = self._chains(batch, matches, texts * length)
        return RolloutOutcome(torch.stack(losses), torch.stack(weights), reached, begun)

    @torch.no_grad()
    def _lesson(self, hidden: torch.Tensor, rows: torch.Tensor) -> Lesson:
        """The token at s + 2 is what the target chooses at s + 1."""
        states = hidden.flatten(0, 1)[rows + 1]
        at_once = max(1, _LOGIT_BYTES // (4 * len(self._target.output_weight)))
        shares, choices = [], []
        for part in torch.split(states, at_once):
            logits = F.linear(part, self._target.output_weight).float()
            own = logits if len(self._draft_ids) == logits.shape[1] else logits[:, self._draft_ids]
            shares.append((own - logits.logsumexp(-1, keepdim=True)).exp().to(states.dtype))
            choices.append(logits.argmax(-1))
        return Lesson(torch.cat(shares), torch.cat(choices))

    def _judged(self, output: torch.Tensor, lesson: Lesson, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weighted loss and which rows are right. What the target has outside of the draft vocabulary lowers a
        row's weight: there the head can't be right."""
        normed = self._head.norm(output)
        loss, best = soft_cross_entropy(normed, self._head.lm_head.weight, lesson.shares, weights)
        return loss, self._draft_ids[best] == lesson.choices

    @torch.no_grad()
    def _chains(self, batch: TextBatch, matches: list[torch.Tensor], size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A chain reaches step k if it is right in step k, and the step before it, one position earlier, was reached.
        Only rows of full weight are counted: a user's text is not drafted."""
        counted = batch.weights >= 1.0
        is_row = torch.zeros(size, dtype=torch.bool, device=batch.rows.device)
        is_row[batch.rows] = counted
        right, there = is_row, is_row
        reached, begun = [], []
        for step, match in enumerate(matches):
            if step:
                right, there = is_row & _shifted(right), is_row & _shifted(there)
            hit = torch.zeros_like(is_row)
            hit[batch.rows] = match
            right = right & hit
            reached.append(self._by_kind(right[batch.rows], batch.kinds))
            begun.append(self._by_kind(there[batch.rows], batch.kinds))
        return torch.stack(reached), torch.stack(begun)

    def _by_kind(self, flags: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros(self._num_kinds, device=flags.device)
        return counts.index_add_(0, kinds, flags.float())


def _shifted(flags: torch.Tensor) -> torch.Tensor:
    """One position on. A text never ends with a row that counts, so nothing passes from one to the next."""
    return F.pad(flags[:-1], (1, 0))


def unroll(
    head: HeadModule, features: torch.Tensor, embedded: torch.Tensor, rope: KeysValues, steps: int
) -> Iterator[torch.Tensor]:
    """The head's output [texts, length, hidden] of each step. `embedded` at s is of the token at s + 1."""
    past: list[KeysValues] = []
    read = head.fused(features)
    for step in range(1, steps + 1):
        output = head(read, embedded, rope, past, step_mask(features.shape[1], step, features.device))
        yield output
        read = F.pad(head.handed_on(output)[:, :-1], (0, 0, 1, 0))  # one position on


@lru_cache(maxsize=256)
def step_mask(length: int, step: int, device: torch.device) -> torch.Tensor:
    """[length, step * length] bool: what a query of this step sees of the keys of all steps so far, one after another.

    Of step 1, positions up to the one where its draft began; of every later step, the one entry on its own draft.
    """
    at = torch.arange(length, device=device)
    distance = at[:, None] - at[None, :]
    blocks = [distance >= step - 1]
    blocks += [distance == step - earlier for earlier in range(2, step + 1)]
    return torch.cat(blocks, dim=1)
