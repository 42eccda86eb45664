"""`slipstream launch`: starts an engine with speculation, and verifies that speculation is on."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter
from slipstream.errors import UsageError
from slipstream.tasks.options import EngineChoice, LaunchOptions, ModelOptions, RunningEngineOptions, startable

if TYPE_CHECKING:
    from slipstream.engines.detached import Detached

PANEL = "Detached engines"


@grouped(drafter=opt.ENGINE_DRAFTER, policy=opt.ENGINE_POLICY, backend=None, url=None, plain_url=None)
def launch(
    engine: Annotated[str | None, typer.Argument(help=f"{opt.ENGINES_HELP}.", show_default=False)] = None,
    models: ModelOptions = ModelOptions(),
    choice: EngineChoice = EngineChoice(),
    keys: RunningEngineOptions = RunningEngineOptions(),
    options: LaunchOptions = LaunchOptions(),
    stop: Annotated[bool, typer.Option("--stop", help="Stop detached engines.", rich_help_panel=PANEL)] = False,
    status: Annotated[bool, typer.Option("--status", help="List detached engines.", rich_help_panel=PANEL)] = False,
    as_json: opt.Json = False,
) -> None:
    """Start vLLM, llama-server, SGLang, TabbyAPI, Ollama or Slipstream's own server with speculation, and watch it.

    The doctor checks the setup first. Once the engine is ready, Slipstream sends repetitive prompts and checks the
    engine's counters. If nothing was drafted, the engine is stopped and the exit code is 1. The engine runs in the
    foreground with a line of figures; Ctrl-C stops it and all its processes.

    [bold]Examples[/bold]

      slipstream launch llama-server --model big.gguf --draft small.gguf --policy "fixed(4)"

      slipstream launch vllm --model org/name --drafter ngram --tensor-parallel 2 --detach

      slipstream launch --status

      slipstream launch llama-server --stop
    """
    from slipstream.cli.engine_watch import watch
    from slipstream.tasks.launch import launch as run_launch

    if status or stop:
        _list_or_stop(engine, choice.port, stop, as_json)
        return
    if engine is None:
        raise UsageError(f"name an engine: {opt.ENGINES_HELP}")
    choice, reporter = replace(choice, name=startable(engine), key=keys.key()), TerminalReporter()
    with run_launch(choice, models, options, reporter=reporter) as launched:
        method = launched.running.settings.method
        typer.echo(json.dumps(launched.to_dict()) if as_json else f"{launched.url}  ({engine}, {method})")
        if options.detach:
            port = launched.running.settings.port
            reporter.say(f"it keeps running; stop it with: slipstream launch {engine} --stop --port {port}")
        else:
            watch(launched.running)


def _list_or_stop(engine: str | None, port: int | None, stop: bool, as_json: bool) -> None:
    from slipstream.tasks.launch import detached

    chosen = detached(engine, port, stop=stop)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in chosen]))
        return
    for one in chosen:
        typer.echo(f"{'stopped' if stop else 'running'}: {_line(one)}")
    if not chosen:
        typer.echo("no detached engine is running")


def _line(one: Detached) -> str:
    return f"{one.engine} at {one.url}, {Path(one.model).name}, {one.method}, since {one.started} (pid {one.pid})"
