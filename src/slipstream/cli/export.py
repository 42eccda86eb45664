"""`slipstream export`: writes tuned settings as an engine's configuration, with a reason for every value."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.tasks.options import EngineChoice, ModelOptions
from slipstream.writing import write_result

if TYPE_CHECKING:
    from slipstream.engines.engine import ExternalEngine
    from slipstream.engines.engine_types import EngineSettings, StartPlan


@grouped(drafter=opt.ENGINE_DRAFTER, policy=opt.ENGINE_POLICY, backend=None, program=None, start_limit=None)
def export(
    engine: Annotated[str, typer.Argument(help=f"{opt.ENGINES_HELP}.", show_default=False)],
    models: ModelOptions = ModelOptions(),
    choice: EngineChoice = EngineChoice(),
    form: Annotated[
        str,
        typer.Option(
            "--format", help="engine (the engine's own format), or for vLLM: kubernetes, compose.", metavar="FORMAT"
        ),
    ] = "engine",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Write the settings in slipstream.yaml or the options as an engine's own configuration. Starts nothing.

    The output is a shell script for vLLM, SGLang and llama-server, a config.yml for TabbyAPI, or a Modelfile for
    Ollama.

    [bold]Examples[/bold]

      slipstream export llama-server --model big.gguf --draft small.gguf --policy "fixed(4)" -o serve.sh

      slipstream export vllm --model org/name --drafter ngram --tensor-parallel 2 --format kubernetes
    """
    from slipstream.engines.secrets import without_secrets
    from slipstream.tasks.engine_settings import engine_settings

    choice = replace(choice, name=engine, program=engine)
    settings = engine_settings(choice, models.resolved(engine), fetch=False)
    found = choice.find()
    plan = without_secrets(found.plan(settings, Path()))
    text = _as_json(found, settings, plan) if as_json else _written(form, found, settings, plan)
    if output is None:
        typer.echo(text.rstrip("\n"))
        return
    write_result(output, text)
    typer.echo(str(output))


def _written(form: str, engine: ExternalEngine, settings: EngineSettings, plan: StartPlan) -> str:
    if form == "engine":
        return own_format(engine, settings, plan)
    from slipstream.engines.manifests import write_manifest

    return write_manifest(form, engine, settings)


def own_format(engine: ExternalEngine, settings: EngineSettings, plan: StartPlan) -> str:
    """The engine's configuration file, or a shell script if it is configured on the command line."""
    head = [
        f"Written by slipstream export for {engine.name} ({engine.version}): {settings.method} on {settings.model}.",
        *plan.notes,
        *_left_out(plan),
    ]
    comments = "".join(f"# {line}\n" for line in head)
    if plan.files:
        return comments + "".join(plan.files.values())
    return "#!/bin/sh\n" + comments + _script(plan)


def _left_out(plan: StartPlan) -> list[str]:
    """What the user has to add: API keys are not written."""
    from slipstream.engines.secrets import HIDDEN

    lines = [f"{name}, which is not written here, has API keys: set its mode to 600." for name in plan.secret_files]
    if HIDDEN in " ".join(plan.argv):
        lines.append(f"API keys are not written here: replace {HIDDEN} with the key.")
    return lines


def _script(plan: StartPlan) -> str:
    """One argument per line. A shell allows no comment after a backslash, so the reasons come first."""
    width = max((len(" ".join(a.words)) for a in plan.arguments if len(" ".join(a.words)) <= 48), default=0)
    reasons = "".join(f"#   {' '.join(a.words):{width}}  {a.why}\n" for a in plan.arguments if a.why)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in plan.env.items())
    exports += "".join(f': "${{{name}:?set it to the key, which is not written here}}"\n' for name in plan.secret_env)
    lines = [shlex.join(plan.program), *(shlex.join(argument.words) for argument in plan.arguments)]
    return f"{reasons}{exports}exec " + " \\\n  ".join(lines) + "\n"


def _without_secrets(settings: EngineSettings) -> EngineSettings:
    from slipstream.engines.secrets import HIDDEN, redacted

    return replace(settings, extra=tuple(redacted(settings.extra)), secrets=dict.fromkeys(settings.secrets, HIDDEN))


def _as_json(engine: ExternalEngine, settings: EngineSettings, plan: StartPlan) -> str:
    return json.dumps(
        {
            "engine": engine.name,
            "version": engine.version,
            "settings": asdict(_without_secrets(settings)),
            "plan": asdict(plan),
            "argv": list(plan.argv),
        }
    )
