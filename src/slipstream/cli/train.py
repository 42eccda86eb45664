"""`slipstream train`: trains a draft head for a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.backends import MachineOptions
from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter
from slipstream.train.settings import TrainOptions

if TYPE_CHECKING:
    from slipstream.train.run import TrainResult

TRAINING = {  # of all commands that train
    "target": opt.OptionSpec("--target", "The model to draft for, named as with --model elsewhere.", "Models"),
    "prompts": opt.OptionSpec(
        "--prompts", "Prompts to answer, a file as with bench. Default: prompts that the target writes itself.", "Text"
    ),
    "transcripts": opt.OptionSpec(
        "--transcripts",
        'Finished conversations, a JSON object with "messages" in each line; the target generates no text.',
        "Text",
    ),
    "texts": opt.OptionSpec("--texts", "Where the text is kept. Several trainings can use the same.", "Text"),
    "tokens": opt.OptionSpec("--tokens", "Answer tokens to train on.", "Text", {"min": 1}),
    "length": opt.OptionSpec("--length", "Maximum tokens of a text.", "Text", {"min": 16}),
    "temperatures": opt.OptionSpec("--temperatures", "Of the answers, separated by commas; 0 is greedy.", "Text"),
    "streams": opt.OptionSpec(
        "--streams", "Texts written at the same time. Default: 256 on GPUs, 16 on CPUs.", "Text", {"min": 1}
    ),
    "shard_texts": opt.OptionSpec(
        "--shard-texts", "Maximum conversations per file. A file is also written after a minute.", "Text"
    ),
    "steps": opt.OptionSpec("--steps", "Training steps.", "Training", {"min": 1}),
    "seconds": opt.OptionSpec("--seconds", "Train for this many seconds instead of --steps.", "Training", {"min": 1}),
    "batch_tokens": opt.OptionSpec("--batch-tokens", "Tokens per step.", "Training", {"min": 16}),
    "weight_decay": opt.OptionSpec("--weight-decay", "Weight decay.", "Training"),
    "optimizer": opt.OptionSpec(
        "--optimizer", "muon (learns faster) or adamw. Default: muon on GPUs, adamw on CPUs.", "Training"
    ),
    "user_weight": opt.OptionSpec("--user-weight", "Weight of the user's tokens; answers weigh 1.", "Training"),
    "held_back": opt.OptionSpec("--held-back", "Share of texts held back for validation.", "Training"),
    "check_every": opt.OptionSpec("--check-every", "Steps between two validations.", "Training"),
    "patience": opt.OptionSpec("--patience", "Stop after this many validations without gain.", "Training", {"min": 1}),
    "save_seconds": opt.OptionSpec("--save-seconds", "Seconds between two checkpoints.", "Training", {"min": 0}),
    "context_length": None,
    "exact": None,
    "gpu_layers": None,
    "kv_type": None,
    "activations": None,
    "kernels": None,
}
_OWN = {
    "draft_vocab": opt.OptionSpec("--draft-vocab", "Token ids that the head can draft; 0: all.", "Head", {"min": 0}),
    "feature_layers": opt.OptionSpec(
        "--feature-layers", "Layers whose hidden states it reads, for example 2,15,27.", "Head", {"show_default": False}
    ),
    "feature_norm": opt.OptionSpec(
        "--feature-norm", "Norm of the features: none, each (layer by layer) or all (together).", "Head"
    ),
    "norm_before_residual": opt.OptionSpec("--norm-before-residual", "Start from the normed features.", "Head"),
    "norm_output": opt.OptionSpec("--norm-output", "The next step reads the output after the last norm.", "Head"),
    "begin_with": opt.OptionSpec(
        "--begin-with",
        "A head to train further, or smollm2-135m for the built-in one. Its shape and vocabulary are kept.",
        "Head",
    ),
    "learning_rate": opt.OptionSpec(
        "--learning-rate", "Peak learning rate. Default: 0.006 (muon), 0.001 (adamw).", "Training"
    ),
    "draft_steps": opt.OptionSpec("--draft-steps", "Tokens drafted from each position.", "Training", {"min": 1}),
    "step_decay": opt.OptionSpec(
        "--step-decay", "Loss weight of each drafted token relative to the one before it.", "Training"
    ),
}


@grouped(**TRAINING, **_OWN)
def train(
    options: TrainOptions = TrainOptions(),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The head's folder. Checkpoints are in FOLDER.training.")
    ] = Path("head"),
    machine: MachineOptions = MachineOptions(),
    as_json: opt.Json = False,
) -> None:
    """Train a draft head for a model: the model writes its own training text, and the head learns to predict it.

    No data set is needed. Ctrl-C stops the training and keeps the best head so far. To resume an interrupted run, run
    the same command again.

    [bold]Examples[/bold]

      slipstream train --target smollm2-135m -o smollm2-head

      slipstream train --target Qwen/Qwen2.5-Coder-0.5B-Instruct --tokens 1000000 --seconds 300 -o coder-head

      slipstream train --target smollm2-135m --prompts my-prompts.jsonl -o my-head

      slipstream train --target smollm2-135m --begin-with my-head --prompts more-prompts.jsonl -o my-better-head
    """
    from slipstream.tasks.train import train as run_train

    with TerminalReporter("training") as reporter:
        result = run_train(options, output, machine=machine, reporter=reporter, command=opt.command_line())
    show(result, as_json)


def show(result: TrainResult, as_json: bool) -> None:
    """On stdout."""
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    state = "finished" if result.is_finished else "stopped early; the same command goes on"
    shares = ", ".join(f"{share:.0%}" for share in result.facts["reached"])
    print(f"{result.folder}: {result.steps} steps, {state}")
    print(f"drafts right up to each position: {shares}")
    print(f"mean accepted length with 4 drafted tokens, on texts held back, greedy: {result.accepted_length:.2f}")
