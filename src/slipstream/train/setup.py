"""TrainingSetup: the options of a run, and what the machine decides where they leave it open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slipstream.backends import MachineOptions
from slipstream.backends.torch.options import TorchOptions, pick_device, pick_dtype
from slipstream.train.settings import RunOptions


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    options: RunOptions
    loading: TorchOptions  # how the target is loaded that writes text
    work: Path  # folder of checkpoint and log, and of the text unless the options name another
    texts: Path  # folder of the text
    device: torch.device
    dtype: str  # of the target
    streams: int  # texts written at the same time
    optimizer: str

    @property
    def checkpoint(self) -> Path:
        return self.work / "checkpoint.pt"

    @property
    def peak_rate(self) -> float:
        rate = self.options.learning_rate
        return self.options.usual_rates[self.optimizer] if rate is None else rate

    def training(self) -> dict[str, Any]:
        """What the trained weights depend on: a checkpoint of other settings is not continued."""
        return self.options.training() | {"optimizer": self.optimizer, "dtype": self.dtype}


def set_up(options: RunOptions, machine: MachineOptions, output: Path) -> TrainingSetup:
    """For a run that writes to `output`. Raises UsageError for what this machine does not have."""
    loading = TorchOptions(device=machine.device, dtype=machine.dtype, threads=machine.threads)
    work, device = output.with_name(f"{output.name}.training"), pick_device(machine.device)
    texts, dtype = options.texts or work / "texts", pick_dtype(machine.dtype, device)
    streams = options.streams or _usual_streams(device)
    optimizer = options.optimizer or _usual_optimizer(device)
    return TrainingSetup(options, loading, work, texts, device, dtype, streams, optimizer)


def _usual_optimizer(device: torch.device) -> str:
    """Muon learns faster: after 250 steps a head had an accepted length of 1.91 against 1.69, at the same rate. But it
    multiplies in bf16, which takes 400 times as long as float32 on CPUs that don't have it."""
    return "muon" if device.type == "cuda" else "adamw"


def _usual_streams(device: torch.device) -> int:
    """With 256 at the same time on two CPU cores, SmolLM2 had fewer than 9 to keep after 100 s."""
    return 256 if device.type == "cuda" else 16
