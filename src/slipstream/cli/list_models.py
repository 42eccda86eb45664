"""`slipstream list`: the models on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import options as opt
from slipstream.cli.terminal import result_console, text_table

if TYPE_CHECKING:
    from slipstream.tasks.models_here import ListedModel


def list_models(
    search: Annotated[
        list[Path] | None, typer.Option("--search", help="A folder to look in as well; may be repeated.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """List the models on this machine, by the names that other commands take.

    Looks in the hub cache, Ollama's store, the built-in models and the folders given.

    [bold]Examples[/bold]

      slipstream list

      slipstream list --search ~/models
    """
    from slipstream.tasks.models_here import list_models as find_models

    models = find_models(search or ())
    if as_json:
        print(json.dumps({"schema": "slipstream.list/1", "models": [model.to_dict() for model in models]}))
    elif models:
        _print(models)
    else:
        print("No models were found. Fetch one (slipstream pull, ollama pull) or name a folder with --search.")


def _print(models: list[ListedModel]) -> None:
    console = result_console(140)
    columns = ("model", "on disk", "parameters", "format", "family")
    console.print(text_table(columns, map(_cells, models), right=("on disk", "parameters")))
    for found in (model.found for model in models if model.found.problem):
        console.print(f"{found.spec} can't be used: {found.problem}")


def _cells(model: ListedModel) -> list[str]:
    found = model.found
    return [
        found.spec,
        opt.shown_bytes(model.disk_bytes),
        f"{found.sizes.num_parameters / 1e9:.2f} B" if found.sizes else "",
        "can't be used" if found.problem else found.quantisation or found.format or "",
        found.family or found.architecture or "",
    ]
