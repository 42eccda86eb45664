"""Rollout: drafts of several steps from every position of a text at the same time, as they happen when answering.

The draft that begins at position p reads in step 1 the target's features of p and the token at p + 1, and predicts the
token at p + 2. Step k reads, in place of features, what step k - 1 gave, and the token at p + k; it predicts the one
after that. It sees what a draft of that length sees: entries made from features up to p, and its own steps after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from slipstream.train.attention import KeysValues
from slipstream.train.batches import TextBatch
from slipstream.train.forward import LOGIT_BYTES, Rope, TargetForward, TargetStates
from slipstream.train.head_module import HeadModule
from slipstream.train.losses import soft_cross_entropy
from slipstream.train.outcomes import BatchOutcome, StatesOf, chains
from slipstream.train.settings import TrainOptions


@dataclass(frozen=True, slots=True)
class TargetDistribution:
    """What the target says at the rows of a batch."""

    shares: torch.Tensor  # [rows, draft vocabulary]: the target's probabilities; less than 1 together
    choices: torch.Tensor  # [rows] int64: the target's likeliest ids


class Rollout:
    def __init__(
        self, head: HeadModule, target: TargetForward, draft_ids: torch.Tensor, num_kinds: int, options: TrainOptions
    ) -> None:
        self.module = self._head = head
        self.begins_usable = options.begin_with is not None
        self.step_decay = options.step_decay
        self._steps = options.draft_steps
        self._target = target
        self._draft_ids = draft_ids  # [draft vocabulary] int64
        self._target_rows = target.output_weight[draft_ids]
        self._num_kinds = num_kinds

    def __call__(self, batch: TextBatch, states_of: StatesOf | None = None) -> BatchOutcome:
        length = batch.tokens.shape[1]
        states = states_of(batch) if states_of else self._target(batch.tokens)
        distribution = self._distribution(states, batch.rows)
        positions = batch.rows % length
        losses, weights, matches = [], [], []
        for step, output in enumerate(self._unrolled(batch.tokens, states.features)):
            counted = batch.weights * (positions >= step)
            begun_at = (batch.rows - step).clamp_min(0)
            loss, match = self._judged(output.flatten(0, 1)[begun_at], distribution, counted)
            losses.append(loss)
            weights.append(counted.sum())
            matches.append(match)
        reached, begun = chains(batch, matches, self._num_kinds)
        return BatchOutcome(torch.stack(losses), torch.stack(weights), reached, begun)

    def _unrolled(self, tokens: torch.Tensor, features: torch.Tensor) -> Iterator[torch.Tensor]:
        length, steps = tokens.shape[1], self._steps
        embedded = [F.embedding(tokens.roll(-step - 1, 1), self._target.embedding) for step in range(steps)]
        ropes = [self._target.rope(length, step) for step in range(steps)]
        return unroll(self._head, features, embedded, ropes)

    @torch.no_grad()
    def _distribution(self, states: TargetStates, rows: torch.Tensor) -> TargetDistribution:
        """The token at s + 2 is what the target chooses at s + 1."""
        hidden, norms, choices = (
            part.flatten(0, 1)[rows + 1] for part in (states.hidden, states.norms, states.choices)
        )
        at_once = max(1, LOGIT_BYTES // (4 * len(self._target_rows)))
        pieces = [
            (F.linear(part, self._target_rows).float() - own[:, None]).exp_().to(hidden.dtype)
            for part, own in zip(torch.split(hidden, at_once), torch.split(norms, at_once), strict=True)
        ]
        return TargetDistribution(torch.cat(pieces), choices)

    def _judged(
        self, output: torch.Tensor, distribution: TargetDistribution, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The weighted loss and which rows are right. What the target has outside of the draft vocabulary lowers a
        row's weight: there the head can't be right."""
        normed = self._head.norm(output)
        loss, best = soft_cross_entropy(normed, self._head.lm_head.weight, distribution.shares.__getitem__, weights)
        return loss, self._draft_ids[best] == distribution.choices


def unroll(
    head: HeadModule, features: torch.Tensor, embedded: Sequence[torch.Tensor], ropes: Sequence[Rope]
) -> Iterator[torch.Tensor]:
    """The head's output [texts, length, hidden] of each step, by where the draft began.

    `embedded`: of each step the tokens that it reads, `ropes`: the rotations of its positions."""
    past: list[KeysValues] = []
    read = head.fused(features)
    for tokens, rope in zip(embedded, ropes, strict=True):
        output = head(read, tokens, rope, past)
        yield output
        read = head.handed_on(output)
