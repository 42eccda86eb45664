"""`slipstream pull`: fetch a model so that it is there when it is needed."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from slipstream.cli import options as opt
from slipstream.tasks.options import DEFAULT_MODEL


def pull(
    model: Annotated[str, typer.Argument(help=opt.MODEL_HELP)] = DEFAULT_MODEL,
    as_json: opt.Json = False,
) -> None:
    """Fetch a model, or say where it is already.

    [bold]Examples[/bold]

      slipstream pull

      slipstream pull HuggingFaceTB/SmolLM2-360M-Instruct
    """
    from slipstream.tasks.models_here import fetch

    path = fetch(model, lambda line: print(line, file=sys.stderr))
    print(json.dumps({"model": model, "path": str(path)}) if as_json else path)
