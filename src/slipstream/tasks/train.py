"""train, distil: a draft head for a target, or a small draft model of its first layers, from text that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.backends import MachineOptions
from slipstream.models import pull
from slipstream.tasks.reporter import SILENT, Reporter
from slipstream.train.messages import Messenger
from slipstream.train.settings import DistilOptions, TrainOptions

if TYPE_CHECKING:
    from slipstream.train.run import TrainResult


def train(
    options: TrainOptions | DistilOptions,
    output: Path,
    *,
    machine: MachineOptions = MachineOptions(),
    reporter: Reporter = SILENT,
    command: str = "slipstream.train",
) -> TrainResult:
    """Trains a head, or a draft model (`DistilOptions`), which is also a GGUF file beside the folder `output`.

    A run that broke off goes on when it is called again. The first Ctrl-C stops it with the best so far. Raises
    UsageError, ModelError, CapacityError.
    """
    from slipstream.train.run import run_training

    pull(options.target, reporter.say)
    return run_training(options, output, machine, Messenger(reporter.say, reporter.progress, reporter.phase), command)
