"""`slipstream quantise`: writes a model as a quantised GGUF file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli import options as opt


def quantise(
    model: Annotated[str, typer.Argument(help=opt.MODEL_HELP)],
    file: Annotated[Path, typer.Argument(help="The GGUF file to create; it must not exist yet.")],
    to: Annotated[str, typer.Option("--to", help="q4_0, q4_1, q5_0, q5_1 or q8_0.")] = "q4_0",
    as_json: opt.Json = False,
) -> None:
    """Write a model as a quantised GGUF file, which is smaller and faster, and answers a little differently.

    Embedding and output head are stored in 8 bits. For Q4_K_M and others use llama.cpp's llama-quantize.

    [bold]Examples[/bold]

      slipstream quantise Qwen/Qwen2.5-0.5B-Instruct qwen-q4_0.gguf

      slipstream quantise ./model model-q8_0.gguf --to q8_0
    """
    from slipstream.models import open_checkpoint
    from slipstream.models.quantise import quantise as write

    checkpoint = open_checkpoint(model)
    print(f"writing {checkpoint.name} to {file} as {to}", file=sys.stderr)
    made = write(checkpoint, file, to)
    if as_json:
        print(json.dumps({"model": model, "file": str(file), "type": to, "num_tensors": made.num_tensors,
                          "file_bytes": made.num_bytes}))  # fmt: skip
    else:
        print(file)
