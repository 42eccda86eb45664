"""`slipstream quantise`: writes a model as a quantised GGUF file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli import options as opt
from slipstream.errors import UsageError
from slipstream.model_files.head_checks import is_head

HEAD_TYPE = "q8_0"


def quantise(
    model: Annotated[str, typer.Argument(help=opt.MODEL_HELP)],
    file: Annotated[Path, typer.Argument(help="The GGUF file to create, of a head the folder; must not exist yet.")],
    to: Annotated[str, typer.Option("--to", help="q4_0, q4_1, q5_0, q5_1 or q8_0; heads: q8_0.")] = "",
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
    if is_head(model):
        num_tensors, num_bytes, to = _head(model, file, to or HEAD_TYPE)
    else:
        num_tensors, num_bytes, to = _model(model, file, to or "q4_0")
    if as_json:
        print(json.dumps({"model": model, "file": str(file), "type": to, "num_tensors": num_tensors,
                          "file_bytes": num_bytes}))  # fmt: skip
    else:
        print(file)


def _model(model: str, file: Path, to: str) -> tuple[int, int, str]:
    """Tensors, bytes and type."""
    from slipstream.models import open_checkpoint
    from slipstream.models.quantise import quantise as write

    checkpoint = open_checkpoint(model)
    print(f"writing {checkpoint.name} to {file} as {to}", file=sys.stderr)
    made = write(checkpoint, file, to)
    return made.num_tensors, made.num_bytes, to


def _head(model: str, folder: Path, to: str) -> tuple[int, int, str]:
    from slipstream.models.head_files import open_head
    from slipstream.models.head_quantise import quantise_head
    from slipstream.models.spec import locate

    if to != HEAD_TYPE:
        raise UsageError(f"--to {to!r}; draft heads are quantised to {HEAD_TYPE}")
    place = locate(model)
    head = open_head(place.path, place.name)
    print(f"writing the head {head.name} to {folder} as {to}", file=sys.stderr)
    return len(head.stored), quantise_head(head, folder), to
