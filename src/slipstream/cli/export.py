"""`slipstream export`: writes tuned settings as an engine's configuration, with a reason for every value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.tasks.options import EngineChoice, ExportOptions, ModelOptions, startable
from slipstream.writing import EXECUTABLE, write_result

PANEL = "Manifests"


@grouped(
    drafter=opt.ENGINE_DRAFTER,
    policy=opt.ENGINE_POLICY,
    backend=None,
    program=None,
    start_limit=None,
    form=opt.OptionSpec(
        "--format",
        "engine (the engine's own format), or for vLLM, SGLang and llama-server: kubernetes, compose.",
        more={"metavar": "FORMAT"},
    ),
    weights_gb=opt.OptionSpec(
        "--weights-gb",
        "GB of all weights, model and draft together. Needed for kubernetes if neither files on this machine nor the "
        "model's name say it.",
        PANEL,
    ),
    image=opt.OptionSpec("--image", "Container image, instead of the engine's public one.", PANEL),
)
def export(
    engine: Annotated[str, typer.Argument(help=f"{opt.ENGINES_HELP}.", show_default=False)],
    models: ModelOptions = ModelOptions(),
    choice: EngineChoice = EngineChoice(),
    options: ExportOptions = ExportOptions(),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Write the settings in slipstream.yaml or the options as an engine's own configuration. Starts nothing.

    The output is a shell script for vLLM, SGLang, llama-server and Slipstream's server, a config.yml for TabbyAPI, or
    a Modelfile for Ollama; with --format a manifest for containers, whose first lines say what to do with it.

    [bold]Examples[/bold]

      slipstream export llama-server --model big.gguf --draft small.gguf --policy "fixed(4)" -o serve.sh

      slipstream export vllm --model Qwen/Qwen3-32B --drafter ngram --tensor-parallel 2 --format kubernetes
    """
    from slipstream.tasks.export import export as make_config

    config = make_config(replace(choice, name=startable(engine)), models)
    text = config.text(options)
    if output:
        write_result(output, text, EXECUTABLE if text.startswith("#!") else None)
    if as_json:
        typer.echo(json.dumps(config.to_dict() | ({"output": str(output)} if output else {})))
    else:
        typer.echo(str(output) if output else text.rstrip("\n"))
