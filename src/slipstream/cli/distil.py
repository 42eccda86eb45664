"""`slipstream distil`: makes a small draft model of a model's own first layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.backends import MachineOptions
from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter
from slipstream.cli.train import TRAINING, show
from slipstream.train.settings import DistilOptions

_OWN = {
    "layers": opt.OptionSpec(
        "--layers", "Number of the target's first layers to keep. Default: an eighth.", "Models", {"min": 1}
    ),
    "learning_rate": opt.OptionSpec(
        "--learning-rate", "Peak learning rate. Default: 0.008 (muon), 0.001 (adamw).", "Training"
    ),
}


@grouped(**TRAINING, **_OWN)
def distil(
    options: DistilOptions = DistilOptions(),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The draft model's folder. FOLDER.gguf is the same as a GGUF file.")
    ] = Path("draft"),
    machine: MachineOptions = MachineOptions(),
    as_json: opt.Json = False,
) -> None:
    """Make a small draft model, for engines that can't use a Slipstream head, such as llama.cpp.

    It consists of the model's own first layers, and learns to answer as the whole model does, from text that the model
    writes itself. No data set is needed. Ctrl-C stops the training and keeps the best draft model so far. To resume an
    interrupted run, run the same command again. In Slipstream itself a head (see slipstream train) is faster.

    [bold]Examples[/bold]

      slipstream distil --target smollm2-135m -o smollm2-draft

      slipstream distil --target Qwen/Qwen2.5-Coder-7B-Instruct --layers 4 --seconds 3600 -o coder-draft

      slipstream generate -m smollm2-135m -d smollm2-draft "Hello"
    """
    from slipstream.tasks.train import train

    with TerminalReporter("training") as reporter:
        result = train(options, output, machine=machine, reporter=reporter, command=opt.command_line())
    show(result, as_json)
