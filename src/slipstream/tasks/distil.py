"""distil: a small draft model for a target, from its own first layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.backends import MachineOptions
from slipstream.models import pull
from slipstream.tasks.reporter import SILENT, Reporter
from slipstream.train.messages import Messenger
from slipstream.train.settings import DistilOptions

if TYPE_CHECKING:
    from slipstream.train.run import TrainResult


def distil(
    options: DistilOptions,
    output: Path,
    *,
    machine: MachineOptions = MachineOptions(),
    reporter: Reporter = SILENT,
    command: str = "slipstream.distil",
) -> TrainResult:
    """Writes a draft model to the folder `output`, and to a GGUF file beside it. A run that broke off goes on when it
    is called again.

    The first Ctrl-C stops it with the best one so far. Raises UsageError, ModelError, CapacityError.
    """
    from slipstream.train.run import distil as run_distil

    pull(options.target, reporter.say)
    return run_distil(options, output, machine, Messenger(reporter.say, reporter.progress), command)
