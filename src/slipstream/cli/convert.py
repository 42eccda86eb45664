"""`slipstream convert`: writes a GGUF file, or any model, as a folder that vLLM, SGLang and transformers can load."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli import options as opt
from slipstream.errors import UsageError


def convert(
    model: Annotated[str, typer.Argument(help=opt.MODEL_HELP)],
    folder: Annotated[Path, typer.Argument(help="The folder to create; it must not exist yet.")],
    dtype: Annotated[
        str, typer.Option("--dtype", help="bf16, or fp32, which keeps dequantised weights exactly.")
    ] = "bf16",
    as_json: opt.Json = False,
) -> None:
    """Write a model as a Hugging Face folder: safetensors, configuration, tokenizer with its chat template.

    For engines that do not read GGUF. Quantised weights are written dequantised, so the folder is larger.

    [bold]Examples[/bold]

      slipstream convert smollm2-135m smollm2

      slipstream convert model.gguf model --dtype fp32
    """
    from slipstream.models import open_checkpoint
    from slipstream.models.export.folder import export_folder
    from slipstream.models.export.weights import STORED_AS

    kind = next((name for name in STORED_AS if name == dtype), None)
    if kind is None:
        raise UsageError(f"--dtype {dtype!r}; expected {', '.join(STORED_AS)}")
    checkpoint = open_checkpoint(model)
    print(f"writing {checkpoint.name} to {folder} as {kind}", file=sys.stderr)
    made = export_folder(checkpoint, folder, kind)
    if as_json:
        print(json.dumps({"model": model, "folder": str(folder), "dtype": kind, "num_tensors": made.num_tensors,
                          "weight_bytes": made.num_bytes}))  # fmt: skip
    else:
        print(folder)
