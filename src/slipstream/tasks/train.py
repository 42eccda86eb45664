"""train: a draft head for a target, from text that the target writes itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.backends import MachineOptions
from slipstream.models import pull
from slipstream.tasks.reporter import SILENT, Reporter
from slipstream.train.messages import Messenger
from slipstream.train.settings import TrainOptions

if TYPE_CHECKING:
    from slipstream.train.run import TrainResult


def train(
    options: TrainOptions,
    output: Path,
    *,
    machine: MachineOptions = MachineOptions(),
    reporter: Reporter = SILENT,
    command: str = "slipstream.train",
) -> TrainResult:
    """Trains a head and writes it to the folder `output`. A run that broke off goes on when it is called again.

    The first Ctrl-C stops it with the best head so far. Raises UsageError, ModelError, CapacityError.
    """
    from slipstream.train.run import train_head

    pull(options.target, reporter.say)
    return train_head(options, output, machine, Messenger(reporter.say, reporter.progress), command)
