"""`slipstream engines`: the engines that other commands take, and their methods."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import options as opt
from slipstream.cli.terminal import result_console, text_table

if TYPE_CHECKING:
    from slipstream.engines.engine_types import Method
    from slipstream.tasks.engines_here import ListedEngine


def engines(
    name: Annotated[str | None, typer.Argument(help="Only this engine.", show_default=False)] = None,
    as_json: opt.Json = False,
) -> None:
    """List engines, the versions found on this machine, their speculation methods, and Slipstream's drafters like them.

    A method or a drafter is what --drafter takes in launch, export, bench, tune and audit.

    [bold]Examples[/bold]

      slipstream engines

      slipstream engines vllm --json
    """
    from slipstream.tasks.engines_here import list_engines

    found = list_engines(name)
    if as_json:
        print(json.dumps({"schema": "slipstream.engines/1", "engines": [engine.to_dict() for engine in found]}))
    else:
        _print(found)


def _print(found: list[ListedEngine]) -> None:
    from rich.text import Text

    console = result_console(140)
    for engine in found:
        also = f" (also {', '.join(engine.aliases)})" if engine.aliases else ""
        here = engine.installed_version or "not found on this machine"
        console.print(Text.assemble((engine.name, "bold"), also, f": {_state(engine, here)}"))
        if engine.methods:
            columns = ("method", "draft model", "like Slipstream's", "draft lengths")
            console.print(text_table(columns, map(_cells, engine.methods)))


def _state(engine: ListedEngine, here: str) -> str:
    if engine.checked_version is None:
        return "known to doctor, plan and pairs"
    return f"{here}; flags checked against {engine.checked_version}"


def _cells(method: Method) -> list[str]:
    if method.missing:
        return [method.name, "", "", method.missing]
    lengths = ", ".join(map(str, method.lengths)) or "its own"
    draft = {"unused": "none"}.get(method.draft, method.draft)
    return [method.name, draft, ", ".join(method.like), lengths]
