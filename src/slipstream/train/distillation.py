"""Distillation: a draft model learns the target's distribution at every position of a text."""

from __future__ import annotations

from slipstream.train.batches import TextBatch
from slipstream.train.draft_module import DraftModule
from slipstream.train.forward import TargetForward
from slipstream.train.losses import soft_cross_entropy, target_shares
from slipstream.train.outcomes import BatchOutcome, StatesOf, chains

_JUDGED_TOKENS = 5  # of a draft


class Distillation:
    step_decay = 1.0
    begins_usable = True

    def __init__(self, module: DraftModule, target: TargetForward, num_kinds: int) -> None:
        self.module = module
        self._target = target
        self._num_kinds = num_kinds

    def __call__(self, batch: TextBatch, states_of: StatesOf | None = None) -> BatchOutcome:
        """A draft is right as long as every token of it is: what it reads is then the text itself."""
        states = states_of(batch) if states_of else self._target(batch.tokens)
        rows = batch.rows + 1  # of these positions the next token counts
        hidden, norms, choices = (part.flatten(0, 1)[rows] for part in (states.hidden, states.norms, states.choices))
        own = self.module(batch.tokens).flatten(0, 1)[rows]
        shares = target_shares(hidden, self._target.output_weight, norms)
        loss, best = soft_cross_entropy(own, self.module.output_weight, shares, batch.weights)
        reached, begun = chains(batch, [best == choices] * _JUDGED_TOKENS, self._num_kinds)
        return BatchOutcome(loss[None], batch.weights.sum()[None], reached, begun)
