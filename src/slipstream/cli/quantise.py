"""`slipstream quantise`: writes a model as a quantised GGUF file, or a draft head as a folder in 8 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli import options as opt
from slipstream.cli.terminal import TerminalReporter


def quantise(
    model: Annotated[str, typer.Argument(help=opt.MODEL_HELP)],
    file: Annotated[Path, typer.Argument(help="The GGUF file to create (for a head: the folder). Must not exist.")],
    to: Annotated[
        str | None, typer.Option("--to", help="q4_0 (the default), q4_1, q5_0, q5_1 or q8_0; a head: q8_0.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Write a model as a quantised GGUF file, which is smaller and faster, and answers a little differently.

    Embedding and output head are stored in 8 bits. For Q4_K_M and others use llama.cpp's llama-quantize. A draft head
    (see slipstream train) becomes a folder in 8 bits: it drafts faster, and answers stay the same.

    [bold]Examples[/bold]

      slipstream quantise Qwen/Qwen2.5-0.5B-Instruct qwen-q4_0.gguf

      slipstream quantise ./model model-q8_0.gguf --to q8_0

      slipstream quantise ./my-head my-head-8bit
    """
    from slipstream.tasks.quantise import quantise as write

    with TerminalReporter() as reporter:
        made = write(model, file, to, reporter)
    if as_json:
        print(json.dumps({"model": model, "file": str(file), "type": made.kind, "num_tensors": made.num_tensors,
                          "file_bytes": made.num_bytes}))  # fmt: skip
    else:
        print(file)
