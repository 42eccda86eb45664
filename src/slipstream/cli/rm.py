"""`slipstream rm`: remove a model that was fetched."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from slipstream.cli import options as opt
from slipstream.errors import UsageError


def rm(
    model: Annotated[str, typer.Argument(help="A hub id (org/name, org/name:FILE.gguf, @REVISION) or smollm2-135m.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Remove a model that was fetched: the built-in one, or what the hub cache holds of a repository.

    Without a revision all of them go; a file that another revision or model of the repository needs stays. Models in
    Ollama's store and files given by path are not removed.

    [bold]Examples[/bold]

      slipstream rm smollm2-135m

      slipstream rm org/name:model-Q4_K_M.gguf --yes
    """
    from slipstream.tasks.models_here import plan_removal

    planned = plan_removal(model)
    size = opt.shown_bytes(planned.freed_bytes)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"rm asks before it removes {model} ({size}), and there is no terminal: pass --yes")
        if not typer.confirm(f"Remove {model} from {planned.removal.root} ({size})?", err=True):
            print("nothing was removed", file=sys.stderr)
            raise typer.Exit(1)
    planned.run()
    print(json.dumps(planned.to_dict()) if as_json else f"removed {model}, freed {size}")
