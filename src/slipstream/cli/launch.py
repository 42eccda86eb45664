"""`slipstream launch`: start an engine with speculation, and make sure that it is really on."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import engine_options as eng
from slipstream.cli import options as opt
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.core.generator import Answer
    from slipstream.engines.engine import EngineSettings, ExternalEngine
    from slipstream.engines.session import Running
    from slipstream.engines.state import Detached

_CHEAP_BYTES = 8e9  # of weights: a second start for the comparison takes seconds up to here
_SMOKE_TOKENS = 24
_SMOKE_PROMPTS = (
    "List the days of the week, then list them again.",
    "Write a Python function that adds two numbers, and a test for it.",
)
PANEL = "Detached engines"


def launch(
    engine: Annotated[str | None, typer.Argument(help=f"{eng.ENGINES_HELP}.", show_default=False)] = None,
    model: opt.Model = None,
    draft: opt.Draft = None,
    drafter: eng.EngineDrafter = None,
    policy: eng.EnginePolicy = None,
    context: opt.Context = None,
    streams: eng.Streams = 1,
    draft_streams: eng.DraftStreams = None,
    host: eng.Host = "127.0.0.1",
    port: eng.Port = None,
    tensor_parallel: eng.TensorParallel = 1,
    pipeline_parallel: eng.PipelineParallel = 1,
    nodes: eng.Nodes = 1,
    program: eng.Program = None,
    engine_args: eng.EngineArgs = "",
    start_limit: eng.StartLimit = 600.0,
    api_key: eng.ApiKey = None,
    api_key_file: eng.ApiKeyFile = None,
    smoke: Annotated[
        bool, typer.Option("--smoke/--no-smoke", help="First compare a few answers with plain decoding's.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Start although the doctor finds that it can't work.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running.", rich_help_panel=PANEL)] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End detached engines.", rich_help_panel=PANEL)] = False,
    status: Annotated[bool, typer.Option("--status", help="List detached engines.", rich_help_panel=PANEL)] = False,
    as_json: opt.Json = False,
) -> None:
    """Start vLLM, llama-server, SGLang, TabbyAPI or Ollama with speculation, watched.

    The doctor looks at it first. Once it is ready, its own counters must show that it drafts: engines fall back to
    plain decoding without a word. It stays in the foreground with a line of figures; Ctrl-C ends it and all it started.

    [bold]Examples[/bold]

      slipstream launch llama-server --model big.gguf --draft small.gguf --policy "fixed(4)"

      slipstream launch vllm --model org/name --drafter ngram --tensor-parallel 2 --detach

      slipstream launch --status      slipstream launch llama-server --stop
    """
    if status or stop:
        _list_or_stop(engine, port, stop, as_json)
        return
    if engine is None:
        raise UsageError(f"name an engine: {eng.ENGINES_HELP}")
    key = eng.read_api_key(api_key, api_key_file)
    choice = eng.EngineChoice(
        engine, program, engine_args, start_limit, context, streams, host, port, tensor_parallel, pipeline_parallel,
        nodes, draft_streams, key,
    )  # fmt: skip
    settings = eng.engine_settings(choice, eng.Drafting.resolve(engine, model, draft, drafter, policy))
    found = choice.find()
    _consult_doctor(found, settings, force)
    plain = _plain_answers(found, settings, key) if smoke else None
    _run(found, settings, key, plain, detach, as_json)


def _consult_doctor(engine: ExternalEngine, settings: EngineSettings, force: bool) -> None:
    from slipstream.cli.engine_runs import check_first, say
    from slipstream.doctor.preflight import BlockedError

    try:
        for finding in check_first(engine, settings):
            if finding.severity == "slows":
                say(f"{finding.id}: {finding.cause} {finding.fix}")
    except BlockedError as error:
        if not force:
            raise
        say(f"started all the same (--force): {error}")


def _plain_answers(engine: ExternalEngine, settings: EngineSettings, api_key: str | None) -> list[Answer] | None:
    """Of the same engine without speculation, in a start of its own; None where that is not cheap."""
    from dataclasses import replace

    from slipstream.cli.engine_runs import engine_running, say
    from slipstream.engines.engine import PLAIN

    if settings.method == PLAIN:
        return None
    path = Path(settings.model)
    size = path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.glob("*.safetensors"))
    if not 0 < size <= _CHEAP_BYTES or settings.nodes > 1:
        say("no comparison with plain decoding: another start is not cheap here. slipstream bench --engine makes one")
        return None
    plain = replace(settings, method=PLAIN, draft=None, draft_length=None, p_min=None, draft_streams=None)
    with engine_running(engine, plain, api_key) as running:
        return _smoke_answers(running)


def _smoke_answers(running: Running) -> list[Answer]:
    from slipstream.cli.engine_runs import deaths_explained
    from slipstream.core.sampling import Sampling
    from slipstream.core.stream import Limits

    generator = running.generator(running.settings.method)
    prompts = [[{"role": "user", "content": text}] for text in _SMOKE_PROMPTS]
    with deaths_explained(running):
        return [generator.answer(prompt, Sampling(), Limits(_SMOKE_TOKENS)) for prompt in prompts]


def _run(
    engine: ExternalEngine,
    settings: EngineSettings,
    api_key: str | None,
    plain: list[Answer] | None,
    detach: bool,
    as_json: bool,
) -> None:
    from slipstream.cli.engine_runs import engine_running, say
    from slipstream.cli.engine_watch import watch

    with engine_running(engine, settings, api_key, detached=detach) as running:
        report = _report(running, plain)
        if report.get("smoke"):
            say(f"against plain decoding: {report['smoke']}")
        typer.echo(json.dumps(report) if as_json else f"{settings.url}  ({engine.name}, {settings.method})")
        if detach:
            _remember(running)
            say(f"it runs on; end it with: slipstream launch {engine.name} --stop --port {settings.port}")
        else:
            watch(running)


def _report(running: Running, plain: list[Answer] | None) -> dict[str, Any]:
    from slipstream.engines.secrets import redacted

    settings = running.settings
    report: dict[str, Any] = {
        "engine": running.engine.name,
        "url": settings.url,
        "model": settings.model,
        "method": settings.method,
        "command": redacted(running.plan.argv),
        "log": str(running.process.log),
        "ready_s": running.ready_s,
    }
    if plain:
        answers = _smoke_answers(running)
        same = sum(a.text == b.text for a, b in zip(plain, answers, strict=True))
        speeds = [sum(a.stats.tokens_per_s for a in side) / len(side) for side in (plain, answers)]
        report["smoke"] = (
            f"{same} of {len(plain)} texts identical; {speeds[1]:.1f} tokens/s, plain {speeds[0]:.1f} (a few tokens: "
            "slipstream bench --engine measures)"
        )
        report["same_text"] = same == len(plain)
    return report


def _remember(running: Running) -> None:
    from slipstream.engines.state import Detached, remember

    settings = running.settings
    remember(
        Detached(
            engine=running.engine.name,
            pid=running.process.pid,
            url=settings.url,
            model=settings.model,
            method=settings.method,
            log=str(running.process.log),
            started=datetime.now().astimezone().isoformat(timespec="seconds"),
        )
    )


def _list_or_stop(engine: str | None, port: int | None, stop: bool, as_json: bool) -> None:
    from slipstream.engines.process import stop_detached
    from slipstream.engines.state import detached_engines, forget

    chosen = [one for one in detached_engines() if engine in (None, one.engine)]
    if port is not None:
        chosen = [one for one in chosen if one.url.endswith(f":{port}")]
    for one in chosen if stop else ():
        stop_detached(one.pid)
        forget(one)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in chosen]))
        return
    for one in chosen:
        typer.echo(f"{'ended' if stop else 'runs'}: {_line(one)}")
    if not chosen:
        typer.echo("no detached engine runs")


def _line(one: Detached) -> str:
    return f"{one.engine} at {one.url}, {Path(one.model).name}, {one.method}, since {one.started} (pid {one.pid})"
