"""`slipstream train` and `distil`, killed while they write text and while they train: the same command goes on to the
same result."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import slipstream
from contract import tiny_models
from slipstream.backends import MachineOptions
from slipstream.backends.llamacpp.options import LlamaCppOptions
from slipstream.train.messages import Messenger
from slipstream.train.run import run_training
from slipstream.train.settings import DistilOptions, TrainOptions
from unit.models.model_files import write_gguf

TRAINING = {
    "tokens": 3000, "shard_texts": 40, "length": 48, "temperatures": "1", "streams": 16, "steps": 30,
    "batch_tokens": 512, "held_back": 0.2, "check_every": 20, "save_seconds": 0.0,
}  # fmt: skip
HEAD = {**TRAINING, "draft_vocab": 80, "draft_steps": 2}
CPU = MachineOptions(device="cpu", threads=1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_models.save_folder(tiny_models.make_model("llama2-mha"), tmp_path_factory.mktemp("target"))


def start(name: str, target: Path, output: Path, settings: dict[str, object]) -> subprocess.Popen[str]:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "slipstream", name, "--target", str(target), "-o", str(output), *words]
    machine = ["--device", "cpu", "--threads", "1", "--json"]
    return subprocess.Popen([*command, *machine], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_when(is_time: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not is_time():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()


def test_a_killed_command_goes_on(target: Path, tmp_path: Path) -> None:
    output, work = tmp_path / "head", tmp_path / "head.training"
    kill_when((work / "texts" / "recipe.json").exists, start("train", target, output, HEAD))
    kill_when((work / "log.jsonl").exists, start("train", target, output, HEAD))
    assert not output.exists()
    process = start("train", target, output, HEAD)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    result = json.loads(said)
    assert result["is_finished"] and "going on at step" in errors
    whole = run_training(TrainOptions(target=str(target), **HEAD), tmp_path / "whole", CPU, Messenger())
    assert result["accepted_length"] == whole.accepted_length
    assert result["num_tokens"] == whole.facts["num_tokens"]
    weights = [(folder / "model.safetensors").read_bytes() for folder in (output, tmp_path / "whole")]
    assert weights[0] == weights[1]


def test_a_killed_distil_goes_on_to_the_same_files(tmp_path: Path) -> None:
    target, output = tmp_path / "target.gguf", tmp_path / "draft"
    write_gguf(target, metadata={"llama.context_length": 256})
    settings = {**TRAINING, "transcripts": _transcripts(tmp_path / "said.jsonl"), "layers": 1}
    kill_when((tmp_path / "draft.training" / "log.jsonl").exists, start("distil", target, output, settings))
    assert not output.exists()
    process = start("distil", target, output, settings)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(said)["is_finished"] and "going on at step" in errors
    whole = run_training(DistilOptions(target=str(target), **settings), tmp_path / "whole" / "draft", CPU, Messenger())
    assert json.loads(said)["accepted_length"] == whole.accepted_length
    for end in ("/model.safetensors", ".gguf"):
        assert Path(f"{output}{end}").read_bytes() == Path(f"{whole.folder}{end}").read_bytes()


@pytest.mark.llamacpp
def test_llama_cpp_drafts_with_a_distilled_file(tmp_path: Path) -> None:
    """It has the target's tokens in the draft too, and gives the same text with it."""
    target = tmp_path / "target.gguf"
    write_gguf(target, metadata={"llama.context_length": 256})
    settings = {**TRAINING, "transcripts": _transcripts(tmp_path / "said.jsonl"), "layers": 1}
    done = run_training(DistilOptions(target=str(target), **settings), tmp_path / "draft", CPU, Messenger())
    options = LlamaCppOptions(threads=1)
    plain = slipstream.load(target, drafter="none", options=options)
    engine = slipstream.load(target, draft=f"{done.folder}.gguf", drafter="model", policy="fixed(3)", options=options)
    answers = [e.generate("What is 7?", max_tokens=24).result() for e in (plain, engine)]
    assert answers[0].tokens == answers[1].tokens and answers[1].stats.num_drafted > 0


def _transcripts(path: Path) -> Path:
    said = [
        [{"role": "user", "content": f"What is {n}?"}, {"role": "assistant", "content": f"It is {n}, {n + 1} is next."}]
        for n in range(60)
    ]
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in said))
    return path
