"""A whole run: text, training, files. Each part goes on where an earlier run with the same options was."""

from __future__ import annotations

import gc
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from slipstream import __version__
from slipstream.backends import AUTO, MachineOptions
from slipstream.backends.torch.kv_pool import tokens_for
from slipstream.backends.torch.memory import free_bytes
from slipstream.backends.torch.options import DTYPES
from slipstream.core.engine import Engine
from slipstream.errors import UsageError
from slipstream.loading import load
from slipstream.models import open_checkpoint
from slipstream.models.checkpoint import Checkpoint
from slipstream.train.batches import PADDED_TO, Corpus, split
from slipstream.train.draft_trainee import DraftTrainee
from slipstream.train.forward import TargetForward, load_target
from slipstream.train.head_trainee import HeadTrainee
from slipstream.train.loop import USUAL_DRAFT, Trainer
from slipstream.train.memory import TrainingPlan, plan_training
from slipstream.train.messages import Messenger
from slipstream.train.plot import page
from slipstream.train.run_state import RunState, best_of, load_state
from slipstream.train.settings import OPTIMIZERS, DistilOptions, TrainOptions
from slipstream.train.setup import TrainingSetup, set_up
from slipstream.train.shards import Shards, Text
from slipstream.train.stored_states import StoredStates, stored_states
from slipstream.train.texts import LEAST_TEXTS, TextMaker, refuse_split, refuse_too_few, too_few
from slipstream.train.trainee import Trainee
from slipstream.train.writer import BULK_STEPS
from slipstream.writing import refuse_unwritable, write_result


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run made. `is_finished` False: it was stopped, and the same command goes on."""

    folder: Path
    is_finished: bool
    steps: int
    facts: dict[str, Any]

    @property
    def accepted_length(self) -> float:
        """Tokens of a round with a draft of 4 tokens, on texts held back, greedy."""
        return float(self.facts["accepted_length"])

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"folder": str(self.folder), "is_finished": self.is_finished, "steps": self.steps, **self.facts}


@dataclass(frozen=True, slots=True)
class TrainingRun:
    setup: TrainingSetup
    target: Checkpoint
    trainee: Trainee
    output: Path
    messenger: Messenger
    command: str

    def run(self) -> TrainResult:
        """Raises UsageError, ModelError, CapacityError; KeyboardInterrupt where it was stopped before training."""
        options, settings = self.setup.options, self.setup.training() | self.trainee.settings()
        state = load_state(self.setup.checkpoint, settings)
        for note in self.trainee.notes():
            self.messenger.say(note)
        plan = self._plan()
        texts, data_s = self._texts()
        if len(texts) < LEAST_TEXTS:
            raise too_few(options, len(texts))
        refuse_split(options, texts)
        learned, judged = split(texts, options.held_back, options.user_weight)
        counts = f"{len(texts):,} texts, {len(judged.texts):,} of them held back"
        state = state or RunState()
        self.messenger.say("; ".join(part for part in (counts, self.trainee.read(learned.texts, state.ids)) if part))
        state.ids = self.trainee.ids
        state = self._trained((learned, judged), state, settings, plan)
        facts = self._facts(texts, state, data_s) | {"num_judged": len(judged.texts)}
        self._write_log(state)
        self.trainee.save(self.output, best_of(state), facts)
        return TrainResult(self.output, state.is_finished, state.step, facts)

    # -- the parts ------------------------------------------------------------------------------------------------

    def _plan(self) -> TrainingPlan:
        """Raises CapacityError where it does not fit."""
        setup, item_bytes = self.setup, DTYPES[self.setup.dtype].itemsize
        size = self.trainee.size(item_bytes)
        streams = 0 if setup.options.transcripts else setup.streams
        plan = plan_training(self.target.config, size, streams, setup.options.length, setup.device, item_bytes)
        self.messenger.say(plan.text())
        plan.check()
        return plan

    def _texts(self) -> tuple[list[Text], float]:
        """All texts, and the seconds that making them took now."""
        setup = self.setup
        shards = Shards(setup.texts, setup.options.recipe())
        engines: list[Engine] = []

        def engine() -> Engine:
            if not engines:
                engines.append(self._engine())
            return engines[0]

        started = time.monotonic()
        TextMaker(setup.options, self.target.tokenizer, engine, self.messenger, setup.streams).make(shards)
        elapsed_s = time.monotonic() - started
        engines.clear()
        gc.collect()
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()
        return list(shards.all()), elapsed_s

    def _engine(self) -> Engine:
        setup, length = self.setup, self.setup.options.length + BULK_STEPS
        many_rows = "fp" if setup.device.type == "cuda" else AUTO  # with codes, 64 rows take 3.6 times as long as one
        kv_tokens = tokens_for(setup.streams, length)
        options = replace(setup.loading, context_length=length, kv_tokens=kv_tokens, activations=many_rows)
        return load(setup.options.target, drafter="none", options=options, max_streams=setup.streams)

    def _trained(
        self, corpora: tuple[Corpus, Corpus], state: RunState, settings: dict[str, Any], plan: TrainingPlan
    ) -> RunState:
        if state.is_finished:
            return state
        if state.step:
            self.messenger.say(f"going on at step {state.step:,}")
        setup = self.setup
        torch.manual_seed(setup.options.seed)
        learned, judged = corpora
        longest = setup.options.length + PADDED_TO + self.trainee.steps_ahead
        target = load_target(self.target, self.trainee.feature_layers, setup.device, DTYPES[setup.dtype], longest)
        drafter = self.trainee.begin(target, setup.device, len(learned.kinds))

        def save(now: RunState) -> None:
            now.save(setup.checkpoint, settings)
            self._write_log(now)

        self.messenger.phase(f"training, {'steps' if setup.options.seconds is None else 'seconds'}")
        stored = self._stored(target, learned, plan)
        trained = Trainer(drafter, learned, judged, setup, self.messenger, save, state, stored).run()
        if not trained.step:
            raise KeyboardInterrupt
        return trained

    def _stored(self, target: TargetForward, learned: Corpus, plan: TrainingPlan) -> StoredStates | None:
        """None also where training ends before it has read every text: storing would cost more than it saves."""
        options, device = self.setup.options, self.setup.device
        if options.seconds is None and options.steps * options.batch_tokens <= int(learned.starts[-1]):
            return None
        return stored_states(target, learned, options.batch_tokens, device, plan.stored(free_bytes(device)))

    # -- what is left of it ---------------------------------------------------------------------------------------

    def _write_log(self, state: RunState) -> None:
        write_result(self.setup.work / "log.jsonl", "".join(json.dumps(record) + "\n" for record in state.records))
        title = f"Training of a {self.trainee.what} for {self.target.name}"
        write_result(self.setup.work / "training.html", page(title, state.records))

    def _facts(self, texts: list[Text], state: RunState, data_s: float) -> dict[str, Any]:
        checks = [record for record in state.records if "accepted_length" in record]
        best = max(checks, key=lambda check: float(check["accepted_length"]))
        setup, options = self.setup, self.setup.options
        return {
            "target": self.target.name,
            "command": self.command,
            "recipe": "prompts" if options.prompts else "transcripts" if options.transcripts else "self",
            **self.trainee.facts(),
            "draft_length": USUAL_DRAFT,
            "length": options.length,
            "num_texts": len(texts),
            "num_tokens": sum(text.num_answer_tokens for text in texts),
            "temperatures": options.temperatures,
            "reached": best["reached"],
            "accepted_length": best["accepted_length"],
            "length_by_kind": best["accepted_length_by_kind"],
            "best_step": best["step"],
            "steps": state.step,
            "is_finished": state.is_finished,
            "batch_tokens": options.batch_tokens,
            "learning_rate": setup.peak_rate,
            "optimizer": OPTIMIZERS[setup.optimizer],
            "data_minutes": data_s / 60,
            "train_minutes": state.elapsed_s / 60,
            "seed": options.seed,
            "device": torch.cuda.get_device_name(setup.device) if setup.device.type == "cuda" else "CPU",
            "dtype": setup.dtype,
            "torch": torch.__version__,
            "slipstream": __version__,
            **({"untrained_length": checks[0]["accepted_length"]} if checks[0]["step"] == 0 else {}),
        }


def run_training(
    options: TrainOptions | DistilOptions,
    output: Path,
    machine: MachineOptions,
    messenger: Messenger,
    command: str = "",
) -> TrainResult:
    """Makes a head or a small draft model, as the options say. Ctrl-C ends it with the best so far."""
    target = open_checkpoint(options.target)
    make: Any = HeadTrainee if isinstance(options, TrainOptions) else DraftTrainee
    with messenger.catching_interrupts():
        trainee = make(options, target)
        setup = set_up(options, machine, output)
        _refuse_unusable(setup, target, trainee.outputs(output))
        if machine.threads:
            torch.set_num_threads(machine.threads)
        return TrainingRun(setup, target, trainee, output, messenger, command).run()


def _refuse_unusable(setup: TrainingSetup, target: Checkpoint, outputs: list[Path]) -> None:
    """Before anything is made. Raises UsageError for options that the target is too small for, or `outputs` that would
    be overwritten or can't be written."""
    there = [path for path in outputs if path.exists()]
    if there and not setup.work.exists():
        raise UsageError(f"{there[0]} exists, and no training of it: choose another --output")
    refuse_unwritable(setup.checkpoint)
    length, context = setup.options.length, target.config.context_length
    if length + BULK_STEPS > context:
        raise UsageError(
            f"--length is {length}, but {target.name} holds {context}, {BULK_STEPS} of them to spare: lower it"
        )
    refuse_too_few(setup.options, target.tokenizer)
