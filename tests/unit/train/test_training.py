"""A head learns: the loss falls and drafts get longer; a run that was killed goes on as if nothing had happened."""

from __future__ import annotations

import errno
import io
import json
import re
import shutil
import signal
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch

from contract import tiny_models
from slipstream.backends import MachineOptions
from slipstream.backends.torch.options import TorchOptions
from slipstream.cli.terminal import TerminalReporter
from slipstream.errors import CapacityError, SlipstreamError, UnsupportedModelError, UsageError
from slipstream.loading import load
from slipstream.models.draft_heads.export import save_head
from slipstream.models.draft_heads.files import open_head
from slipstream.models.draft_heads.layouts import head_tensors
from slipstream.models.hf.safetensors_file import read_file_header
from slipstream.train import loop, run, run_state
from slipstream.train.loop import rate_at
from slipstream.train.messages import Messenger
from slipstream.train.run import TrainResult, run_training
from slipstream.train.run_state import RunState, Tensors, load_state
from slipstream.train.settings import TrainOptions
from slipstream.train.setup import set_up
from slipstream.train.shards import Shards
from slipstream.train.stored_states import stored_states

CPU = MachineOptions(device="cpu", threads=1)


@pytest.fixture(scope="module")
def options(learnable: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainOptions:
    return TrainOptions(
        target=str(learnable), texts=tmp_path_factory.mktemp("texts"), tokens=6_000, length=48, temperatures="1",
        streams=32, shard_texts=64, draft_vocab=80, steps=30, batch_tokens=768, learning_rate=2e-2, held_back=0.1,
        check_every=5, draft_steps=4, save_seconds=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(options: TrainOptions, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run without interruption."""
    return train(options, tmp_path_factory.mktemp("whole") / "head")


def train(options: TrainOptions, output: Path, messenger: Messenger | None = None) -> TrainResult:
    return run_training(options, output, CPU, messenger or Messenger(), "slipstream train --target tiny")


def records(result: TrainResult) -> list[dict[str, float]]:
    log = result.folder.with_name(f"{result.folder.name}.training") / "log.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()]


def weights(result: TrainResult) -> dict[str, np.ndarray]:
    stored = read_file_header(result.folder / "model.safetensors")
    return {name: tensor.read().data.copy() for name, tensor in stored.items() if tensor.dtype == "BF16"}


def id_map(result: TrainResult) -> np.ndarray:
    return read_file_header(result.folder / "model.safetensors")["d2t"].read_integers()


def test_the_loss_falls_and_drafts_get_longer(whole):
    checks = [record for record in records(whole) if "accepted_length" in record]
    assert whole.is_finished and whole.steps == 30
    assert checks[-1]["held_back_loss"] < 0.85 * checks[0]["held_back_loss"]
    assert checks[-1]["accepted_length"] > checks[0]["accepted_length"] + 0.1
    assert whole.accepted_length == max(check["accepted_length"] for check in checks)


def test_a_run_that_broke_off_goes_on_and_ends_with_the_same_weights(options, whole, tmp_path):
    class CrashError(Exception):
        pass

    def crash(line: str) -> None:
        if line.startswith("step 20:"):
            raise CrashError

    with pytest.raises(CrashError):
        train(options, tmp_path / "head", Messenger(crash))
    assert not (tmp_path / "head").exists()
    said: list[str] = []
    result = train(options, tmp_path / "head", Messenger(said.append))
    assert "going on at step 19" in said
    assert result.accepted_length == whole.accepted_length
    for name, tensor in weights(whole).items():
        assert np.array_equal(weights(result)[name], tensor), name
    again = train(options, tmp_path / "head")  # nothing is left to do
    assert again.is_finished and again.accepted_length == whole.accepted_length


@pytest.mark.parametrize(("given", "used"), [(None, 16), (32, 32)])
def test_a_cpu_writes_few_texts_at_the_same_time(options, tmp_path, given, used):
    assert set_up(replace(options, streams=given), CPU, tmp_path / "head").streams == used


def test_a_stop_leaves_a_head_that_can_be_used(options, tmp_path):
    messenger = Messenger()

    def stop(done: float, total: float, what: str) -> None:
        messenger.stop_asked = what.startswith("loss")

    messenger.progress = stop
    result = train(options, tmp_path / "head", messenger)
    assert not result.is_finished and result.steps == 5
    assert weights(result)["lm_head.weight"].shape == (80, 40)
    assert "stopped early" in (tmp_path / "head" / "README.md").read_text()


def test_phases_are_called_what_they_do(options, tmp_path, capsys):
    reporter = TerminalReporter("working")
    messenger = Messenger(progress=reporter.progress, phase=reporter.phase)
    train(replace(options, texts=None, tokens=600, steps=6), tmp_path / "head", messenger)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("writing text, tokens: ") and said[0].endswith(" of 600")
    assert said[-1].startswith("training, steps: ") and said[-1].endswith(" of 6")


def test_other_options_do_not_continue_a_run(options, whole):
    with pytest.raises(UsageError, match=r"--learning-rate was 0\.02, now 0\.01"):
        train(replace(options, learning_rate=0.01), whole.folder)
    with pytest.raises(UsageError, match=r"text of another recipe.*--seed was 0, now 1"):
        train(replace(options, seed=1), whole.folder.with_name("other"))


def test_a_folder_that_is_no_training_is_left_alone(options, tmp_path):
    (tmp_path / "head").mkdir()
    with pytest.raises(UsageError, match="exists, and no training of it"):
        train(options, tmp_path / "head")


def test_more_threads_than_the_machine_can_run_are_refused(options, tmp_path):
    with pytest.raises(UsageError, match="threads is 99999; this machine has"):
        run_training(options, tmp_path / "head", MachineOptions(device="cpu", threads=99999), Messenger())


def test_a_place_that_can_not_be_written_is_refused_at_once(options):
    with pytest.raises(SlipstreamError, match=r"head\.training/checkpoint\.pt can't be written: .* \(/proc\)"):
        train(options, Path("/proc/nowhere/head"))


def test_a_full_disk_is_told_with_the_file(options, tmp_path, monkeypatch):
    @contextmanager
    def full(path: Path) -> Iterator[BinaryIO]:
        with Path("/dev/full").open("wb") as file:
            yield file

    monkeypatch.setattr(run_state, "opened_whole", full)
    with pytest.raises(SlipstreamError, match=r"checkpoint\.pt can't be written: No space left on device"):
        train(options, tmp_path / "head")


def test_a_disk_that_fills_up_in_the_middle_of_a_tensor_is_told_with_the_file(tmp_path, monkeypatch):
    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() + len(data) > 100_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(run_state, "opened_whole", lambda path: nullcontext(Full()))
    with pytest.raises(SlipstreamError, match=r"checkpoint\.pt can't be written: No space left on device"):
        RunState(weights={"w": torch.zeros(1_000_000)}).save(tmp_path / "checkpoint.pt", {})


def test_what_does_not_fit_is_refused_before_anything_is_written(options, tmp_path):
    with pytest.raises(CapacityError, match=r"too little memory.*Lower --batch-tokens"):
        train(replace(options, batch_tokens=1_000_000_000), tmp_path / "head")
    assert not (tmp_path / "head.training").exists()


def test_the_folder_has_weights_id_maps_and_a_card(whole):
    stored = read_file_header(whole.folder / "model.safetensors")
    assert stored["d2t"].shape == (80,) and stored["t2d"].shape == (131,)
    card = (whole.folder / "README.md").read_text()
    for part in (
        "slipstream train --target tiny",
        "Licence: to be stated",
        f"**{whole.accepted_length:.2f}**",
        "Seed 0",
    ):
        assert part in card
    page = (whole.folder.with_name(f"{whole.folder.name}.training") / "training.html").read_text()
    assert page.count("<svg") == 3


def test_a_damaged_checkpoint_is_named(options, tmp_path):
    RunState().save(tmp_path / "head.training" / "checkpoint.pt", {})
    path = tmp_path / "head.training" / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SlipstreamError, match="can't be read"):
        train(options, tmp_path / "head")


@pytest.mark.parametrize(("free", "is_stored"), [(1 << 30, False), (8 << 30, True)])
def test_states_are_stored_where_the_steps_fit_beside_them(options, tmp_path, monkeypatch, free, is_stored):
    made: list[object] = []
    monkeypatch.setattr(run, "free_bytes", lambda device: free)
    monkeypatch.setattr(run, "stored_states", lambda *given: made.append(stored_states(*given)))
    train(replace(options, steps=20), tmp_path / "head")
    assert [states is not None for states in made] == [is_stored]


def test_a_checkpoint_is_written_without_a_copy_in_memory(tmp_path):
    state = RunState(weights={"a": torch.ones(4_000_000)}, best={"a": torch.ones(4_000_000)})  # 32 MB
    tracemalloc.start()
    try:
        state.save(tmp_path / "checkpoint.pt", {})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


def test_a_checkpoint_takes_no_memory_before_it_is_used(tmp_path):
    """Else a run that goes on would be refused where it fitted when it began."""
    RunState(weights={"a": torch.ones(8_000_000)}).save(tmp_path / "checkpoint.pt", {})  # 32 MB
    before = _anonymous_bytes()
    state = load_state(tmp_path / "checkpoint.pt", {})
    assert state is not None and _anonymous_bytes() - before < 4_000_000
    assert state.weights["a"].sum() == 8_000_000


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


def test_the_best_weights_before_are_freed_before_new_ones_are_copied(options, tmp_path, monkeypatch):
    made: list[weakref.ref[torch.Tensor]] = []
    num_alive: list[int] = []
    original = loop._copy

    def copy(module: torch.nn.Module) -> Tensors:
        num_alive.append(sum(ref() is not None for ref in made))
        tensors = original(module)
        made.extend(map(weakref.ref, tensors.values()))
        return tensors

    monkeypatch.setattr(loop, "_copy", copy)
    train(replace(options, steps=15), tmp_path / "head")
    assert len(num_alive) > 1 and set(num_alive) == {0}


@pytest.mark.parametrize("has_infinite_weight", [False, True])  # the loss is NaN; it is finite, and the step overflows
def test_a_run_that_diverges_saves_nothing_of_it(options, tmp_path, monkeypatch, has_infinite_weight):
    step = loop.Trainer._step

    def overflow(trainer: loop.Trainer) -> torch.Tensor:
        loss = step(trainer)
        next(trainer.drafter.module.parameters()).data[0] = torch.inf
        return loss

    if has_infinite_weight:
        monkeypatch.setattr(loop.Trainer, "_step", overflow)
    rate = 0.02 if has_infinite_weight else 1e12
    cause = "a weight is NaN or infinite" if has_infinite_weight else "the loss is nan"
    advice = f"Use a lower --learning-rate than {rate:g} with another --output, and --texts {options.texts}"
    with pytest.raises(SlipstreamError, match=rf"training diverged: {cause} at step \d+\. {re.escape(advice)}"):
        train(replace(options, learning_rate=rate, check_every=1000), tmp_path / "head")
    checkpoint = tmp_path / "head.training" / "checkpoint.pt"
    saved = torch.load(checkpoint)["weights"] if checkpoint.exists() else {}
    assert all(weight.isfinite().all() for weight in saved.values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_asks_and_the_second_stops(number):
    before, messenger = signal.getsignal(number), Messenger()
    signal.signal(signal.SIGTERM, lambda *given: pytest.fail("SIGTERM was not caught"))
    try:
        with messenger.catching_interrupts():
            signal.raise_signal(number)
            assert messenger.stop_asked
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert signal.getsignal(number) == before


def test_the_rate_rises_and_falls():
    rates = [rate_at(share / 100, 0.1) for share in range(101)]
    assert rates[0] < 0.01 and rates[10] == 1.0 and rates[100] == pytest.approx(0)
    assert all(earlier >= later for earlier, later in pairwise(rates[10:]))


def test_a_target_with_biases_and_a_tied_vocabulary_gets_a_head_that_drafts(tiny_folders, tmp_path: Path):
    """As Qwen2 has them."""
    target = str(tiny_folders["qwen2-bias-tied"])
    options = TrainOptions(
        target=target, texts=tmp_path / "texts", tokens=1_500, length=48, temperatures="1", streams=32, shard_texts=32,
        draft_vocab=80, steps=2, batch_tokens=768, held_back=0.1, check_every=2, draft_steps=3,
    )  # fmt: skip
    made = train(options, tmp_path / "head")
    engine = load(target, draft=str(made.folder), policy=2, options=TorchOptions(device="cpu"))
    stats = engine.generate([1, 2, 3], max_tokens=12).result().stats
    assert made.is_finished and stats.num_drafted > 0 and stats.drafter_error is None


def test_a_run_that_goes_on_with_other_text_keeps_the_ids_that_its_weights_are_for(options, tmp_path):
    """A shard that was damaged and made again is enough to choose others."""
    messenger = Messenger()

    def stop(done: float, total: float, what: str) -> None:
        messenger.stop_asked = what.startswith("loss")

    messenger.progress = stop
    before = id_map(train(options, tmp_path / "head", messenger))
    recipe = options.recipe()
    shards, changed = Shards(options.texts, recipe), Shards(tmp_path / "texts", recipe)
    changed.write(0, [replace(text, tokens=130 - text.tokens) for text in shards.all()], shards.num_conversations(0))
    other = replace(options, texts=tmp_path / "texts", steps=1)
    assert not np.array_equal(id_map(train(other, tmp_path / "other")), before)
    assert np.array_equal(id_map(train(replace(other, steps=options.steps), tmp_path / "head")), before)


def test_a_head_is_trained_further_with_its_vocabulary(options, whole, tmp_path):
    result = train(replace(options, begin_with=str(whole.folder), steps=2, learning_rate=1e-4), tmp_path / "head")
    first = next(record for record in records(result) if "accepted_length" in record)
    assert first["step"] == 0 and abs(first["accepted_length"] - whole.accepted_length) < 0.02
    assert np.array_equal(id_map(whole), id_map(result))


@pytest.mark.parametrize("built_in", [False, True])
def test_a_head_for_another_target_is_not_trained_further(options, whole, tmp_path, built_in):
    small = tiny_models.save_folder(tiny_models.make_model("llama2-mha", num_hidden_layers=2), tmp_path / "small")
    head = "smollm2-135m" if built_in else str(whole.folder)
    with pytest.raises(UnsupportedModelError, match="head for another target"):
        train(replace(options, target=str(small), begin_with=head), tmp_path / "head")


def test_a_folder_goes_before_a_built_in_head_of_its_name(options, whole, tmp_path, monkeypatch):
    """The built-in one would be refused for this target."""
    shutil.copytree(whole.folder, tmp_path / "smollm2-135m")
    monkeypatch.chdir(tmp_path)
    train(replace(options, begin_with="smollm2-135m", steps=1), tmp_path / "head")


def test_a_head_with_its_ids_in_another_order_is_not_trained_further(options, whole, tmp_path):
    head = open_head(whole.folder, "head")
    tensors = {name: head.tensor(name) for name in head_tensors(head.config)}
    save_head(tmp_path / "odd", head.config, tensors, head.token_ids()[::-1].copy())
    with pytest.raises(UsageError, match="not in rising order"):
        train(replace(options, begin_with=str(tmp_path / "odd")), tmp_path / "head")
