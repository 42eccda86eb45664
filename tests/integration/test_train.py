"""`slipstream train`, killed while it writes text and while it trains: the same command goes on to the same head."""

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

from contract import tiny_models
from slipstream.backends import MachineOptions
from slipstream.train.messages import Messenger
from slipstream.train.run import train_head
from slipstream.train.settings import TrainOptions

SETTINGS = {
    "tokens": 3000, "shard_texts": 40, "length": 48, "temperatures": "1", "streams": 16, "draft_vocab": 80, "steps": 30,
    "batch_tokens": 512, "held_back": 0.2, "check_every": 20, "draft_steps": 2, "save_seconds": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_models.save_folder(tiny_models.make_model("llama2-mha"), tmp_path_factory.mktemp("target"))


def start(target: Path, output: Path) -> subprocess.Popen[str]:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    command = [sys.executable, "-m", "slipstream", "train", "--target", str(target), "-o", str(output), *words]
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
    kill_when((work / "texts" / "recipe.json").exists, start(target, output))
    kill_when((work / "log.jsonl").exists, start(target, output))
    assert not output.exists()
    process = start(target, output)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    result = json.loads(said)
    assert result["is_finished"] and "going on at step" in errors
    options = TrainOptions(target=str(target), **SETTINGS)
    whole = train_head(options, tmp_path / "whole", MachineOptions(device="cpu", threads=1), Messenger())
    assert result["accepted_length"] == whole.accepted_length
    assert result["num_tokens"] == whole.facts["num_tokens"]
    weights = [(folder / "model.safetensors").read_bytes() for folder in (output, tmp_path / "whole")]
    assert weights[0] == weights[1]
