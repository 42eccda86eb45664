"""Trainer: the steps of training, the looks at texts held back, and the checkpoints between them."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from slipstream.errors import SlipstreamError
from slipstream.train.batches import Corpus, Schedule
from slipstream.train.messages import Messenger, time_left
from slipstream.train.outcomes import BatchOutcome, TrainableDrafter
from slipstream.train.run_state import RunState, Tensors
from slipstream.train.setup import TrainingSetup
from slipstream.train.stored_states import StoredStates

LOG_EVERY = 50  # steps; reading the loss waits for the device
USUAL_DRAFT = 4  # tokens: the draft by which results are compared
_BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Figures:
    """What drafts are on some texts."""

    loss: float
    reached: list[float]  # share of drafts that are right up to each position, from the first
    length_by_kind: dict[str, float]

    @property
    def accepted_length(self) -> float:
        """Tokens of a round with the usual draft, the target's own included."""
        return 1.0 + sum(self.reached[:USUAL_DRAFT])

    def to_dict(self) -> dict[str, Any]:
        return {
            "held_back_loss": round(self.loss, 5),
            "reached": [round(share, 5) for share in self.reached],
            "accepted_length": round(self.accepted_length, 4),
            "accepted_length_by_kind": {kind: round(n, 4) for kind, n in self.length_by_kind.items()},
        }


@dataclass
class Trainer:
    drafter: TrainableDrafter
    learned: Corpus
    judged: Corpus
    setup: TrainingSetup
    messenger: Messenger
    save: Callable[[RunState], None]  # writes a checkpoint
    state: RunState = field(default_factory=RunState)
    stored: StoredStates | None = None  # of the texts to learn from

    def __post_init__(self) -> None:
        self._options, self._device = self.setup.options, self.setup.device
        self._schedule = Schedule(self.learned, self._options.batch_tokens, self._options.seed)
        self._module = self.drafter.module
        self._optimizers = _optimizers(self._module, self.setup)
        if self.state.weights:
            self._module.load_state_dict(self.state.weights)
            for number, optimizer in enumerate(self._optimizers):
                optimizer.load_state_dict(self.state.optimizer[str(number)])

    def run(self) -> RunState:
        """Trains to the end of the budget, or until it is asked to stop. The state is saved in both cases."""
        losses: list[torch.Tensor] = []
        started = saved = time.monotonic() - self.state.elapsed_s
        saved += self.state.elapsed_s
        if not self.state.records and self.drafter.begins_usable:
            self._check()
        while not self._is_over() and not self.messenger.stop_asked:
            losses.append(self._step())
            self.state.step += 1
            self.state.elapsed_s = time.monotonic() - started
            if self.state.step % LOG_EVERY == 0 or self.state.step % self._options.check_every == 0 or self._is_over():
                self._log(losses)
                losses = []
            if self.state.step % self._options.check_every == 0 or self._is_over():
                self._check()
            if time.monotonic() - saved >= self._options.save_seconds:
                self._save(losses)
                saved = time.monotonic()
        if self.messenger.stop_asked and not self._is_over():
            self._check()
        self.state.is_finished = self._is_over()
        self._save(losses)
        return self.state

    def _is_over(self) -> bool:
        return self._share() >= 1.0 or self.state.checks_without_gain > self._options.patience

    def _share(self) -> float:
        """Of the budget that is used up."""
        used, budget = self._used()
        return used / budget

    def _used(self) -> tuple[float, float]:
        """Seconds or steps, and the budget of them."""
        options, state = self._options, self.state
        return (state.step, options.steps) if options.seconds is None else (state.elapsed_s, options.seconds)

    def _step(self) -> torch.Tensor:
        """One update. Returns the loss on the device."""
        for group in (group for optimizer in self._optimizers for group in optimizer.param_groups):
            group["lr"] = self.setup.peak_rate * rate_at(self._share(), self._options.warm_up)
        batch = self.learned.batch(self._schedule.at(self.state.step)).to(self._device)
        with self._low_precision():
            loss = self.drafter(batch, self.stored).loss(self.drafter.step_decay)
        self._module.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._module.parameters(), self._options.clip)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "mkldnn_matmul")  # Muon multiplies in bf16, for which some CPUs are slow
            for optimizer in self._optimizers:
                optimizer.step()
        return loss.detach()

    def _low_precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda")

    def _log(self, losses: list[torch.Tensor]) -> None:
        loss = self._mean(losses)
        self.state.records.append({"step": self.state.step, "seconds": round(self.state.elapsed_s, 2), "loss": loss})
        self.messenger.progress(*self._used(), f"loss {loss:.3f}")

    def _mean(self, losses: list[torch.Tensor]) -> float:
        """Raises SlipstreamError where it is NaN or infinite."""
        loss = float(torch.stack(losses).mean())
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is {loss}")
        return loss

    def _diverged(self, what: str) -> SlipstreamError:
        return SlipstreamError(
            f"training diverged: {what} at step {self.state.step}. Use a lower --learning-rate than "
            f"{self.setup.peak_rate:g} with another --output, and --texts {self.setup.texts} to use the same text"
        )

    def _check(self) -> None:
        """Judges what is trained. The best weights are kept."""
        figures = self.judge()
        if not self.state.step and not math.isfinite(figures.loss):
            raise SlipstreamError(
                f"the loss of {self._options.target} is NaN or infinite before training: its weights are damaged. "
                f"Run: slipstream doctor --target {self._options.target}"
            )
        self.state.records.append(
            {"step": self.state.step, "seconds": round(self.state.elapsed_s, 2), **figures.to_dict()}
        )
        if figures.accepted_length > self.state.best_length:
            self.state.best_length, self.state.checks_without_gain = figures.accepted_length, 0
            self.state.best = {}  # what was the best before is freed first
            self.state.best = _copy(self._module)
        else:
            self.state.checks_without_gain += 1
        left_s = self.state.elapsed_s / max(self._share(), 1e-9) - self.state.elapsed_s
        left = f", {time_left(left_s)}" if self.state.step else ""
        by_position = " ".join(f"{share:.2f}" for share in figures.reached)
        self.messenger.say(
            f"step {self.state.step}: loss {figures.loss:.3f}, right up to each position {by_position}, accepted "
            f"length {figures.accepted_length:.2f} (best {self.state.best_length:.2f}){left}"
        )

    @torch.no_grad()
    def judge(self) -> Figures:
        """As it is now, on the texts held back."""
        outcomes = list(self._outcomes(self.judged))
        losses, weights = sum(o.losses for o in outcomes), sum(o.weights for o in outcomes)
        reached, begun = sum(o.reached for o in outcomes), sum(o.begun for o in outcomes)
        assert all(isinstance(part, torch.Tensor) for part in (losses, weights, reached, begun))
        total = BatchOutcome(losses, weights, reached, begun)  # type: ignore[arg-type]
        shares = total.reached.sum(1) / total.begun.sum(1).clamp_min(1)
        lengths = 1 + (total.reached / total.begun.clamp_min(1))[:USUAL_DRAFT].sum(0)
        by_kind = {
            kind: n
            for kind, n, seen in zip(self.judged.kinds, lengths.tolist(), total.begun[0].tolist(), strict=True)
            if seen
        }
        return Figures(float(total.loss(self.drafter.step_decay)), shares.tolist(), by_kind)

    def _outcomes(self, corpus: Corpus) -> Iterator[BatchOutcome]:
        for chosen in corpus.in_order(self._options.batch_tokens):
            with self._low_precision():
                yield self.drafter(corpus.batch(chosen).to(self._device))

    def _save(self, losses: list[torch.Tensor]) -> None:
        """`losses`: those since the last line of the log. Raises SlipstreamError instead of saving what diverged."""
        if losses:
            self._mean(losses)
        if not all(bool(weight.isfinite().all()) for weight in self._module.parameters()):
            raise self._diverged("a weight is NaN or infinite")
        self.state.weights = self._module.state_dict()
        self.state.optimizer = {str(i): optimizer.state_dict() for i, optimizer in enumerate(self._optimizers)}
        self.save(self.state)


def rate_at(share: float, warm_up: float) -> float:
    """The learning rate against its peak: rises in a line, falls to 0 as a cosine."""
    if share < warm_up:
        return max(share / warm_up, 1e-3)
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (share - warm_up) / max(1 - warm_up, 1e-9)))


def _optimizers(module: nn.Module, setup: TrainingSetup) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of layers, whose update has the same size in all directions; AdamW for vocabularies, of
    which most rows are rare, and for gains of norms, which are not pulled to zero."""
    matrices = {name: weight for name, weight in module.named_parameters() if weight.dim() > 1}
    gains = [weight for weight in module.parameters() if weight.dim() == 1]
    rows = [weight for name, weight in matrices.items() if _is_vocabulary(name)]
    hidden = [weight for name, weight in matrices.items() if not _is_vocabulary(name)]
    decay = setup.options.weight_decay
    output = {"params": [*rows, *(hidden if setup.optimizer == "adamw" else [])], "weight_decay": decay}
    others = {"params": gains, "weight_decay": 0.0}
    adamw = torch.optim.AdamW([output, others], lr=setup.peak_rate, betas=_BETAS, fused=setup.device.type == "cuda")
    if setup.optimizer == "adamw":
        return [adamw]
    muon = torch.optim.Muon(hidden, lr=setup.peak_rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return [adamw, muon]


def _is_vocabulary(name: str) -> bool:
    return "lm_head" in name or "embed_tokens" in name


def _copy(module: nn.Module) -> Tensors:
    return {name: weight.detach().clone() for name, weight in module.state_dict().items()}
