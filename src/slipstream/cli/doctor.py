"""`slipstream doctor`: does this pair work on this engine and machine, and if not, why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import engine_options as eng
from slipstream.cli import options as opt

if TYPE_CHECKING:
    from rich.console import Console

    from slipstream.doctor.examine import Diagnosis
    from slipstream.doctor.findings import Finding
    from slipstream.doctor.machine import Machine

_COLOURS = {"blocks": "red", "slows": "yellow", "note": "dim"}


def doctor(
    target: Annotated[
        str | None,
        typer.Option("--target", "-m", "--model", help="The model that answers.", rich_help_panel="Models"),
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", "-d", help="The model that drafts.", rich_help_panel="Models")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            "-e",
            help="slipstream, llama-server (llama.cpp), vllm, sglang, transformers, tabbyapi (exllama), ollama.",
        ),
    ] = "slipstream",
    url: Annotated[
        str | None, typer.Option("--url", help="An engine that runs there: does it really speculate?")
    ] = None,
    api_key: eng.ApiKey = None,
    api_key_file: eng.ApiKeyFile = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="A command line, JSON, config.yml or Modelfile of an engine, to be checked."),
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="What an engine printed, to be explained; - reads standard input.")
    ] = None,
    context: Annotated[int | None, typer.Option("--context", help="Tokens of prompt and answer you need.")] = None,
    batch: Annotated[int, typer.Option("--batch", help="Requests at the same time.", min=1)] = 1,
    temperature: opt.Temperature = 0.0,
    python: Annotated[
        str, typer.Option("--python", help="The Python of the engine's environment: its torch is tried on the files.")
    ] = "",
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run the target for a moment, and judge its speed.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Say before the first token whether a target, a draft, an engine and this machine work together.

    Every finding names what was seen, what it means and what to do. Exit 1 when something blocks.

    [bold]Examples[/bold]

      slipstream doctor

      slipstream doctor --target llama-8b.gguf --draft llama-1b.gguf --engine llama.cpp

      slipstream doctor --engine llama-server --url http://127.0.0.1:8080

      slipstream doctor --engine vllm --config serve.sh --log vllm.log
    """
    from slipstream.core.sampling import Sampling
    from slipstream.doctor.examine import Case, examine

    if log == Path("-"):
        log = Path("/dev/stdin")
    sampling = Sampling(temperature=temperature)
    running = _running(engine, url, eng.read_api_key(api_key, api_key_file)) if url else []
    case = Case(target, draft, _doctor_name(engine), config, log, context, batch, sampling, python or sys.executable)
    result = examine(case, lambda line: print(f"slipstream: {line}", file=sys.stderr))
    result.findings += running
    if measure:
        result.findings += _measured(result)
    if as_json:
        typer.echo(json.dumps(result.as_dict(), indent=2))
    else:
        _show(result)
    if result.is_blocked:
        raise typer.Exit(1)


def _doctor_name(engine: str) -> str:
    """Engines that can be driven are known here by those names too."""
    from slipstream.engines import ENTRIES

    return ENTRIES[engine].in_doctor if engine in ENTRIES else engine


def _running(name: str, url: str, api_key: str | None) -> list[Finding]:
    """What the engine at `url` says of its speculation. Raises EngineRequestError where it can't be asked."""
    from slipstream.doctor.runtime import check_running
    from slipstream.engines import find_engine
    from slipstream.engines.client import Client
    from slipstream.engines.engine import EngineSettings

    engine, client = find_engine(name), Client(url, api_key)
    state = engine.speculation_state(client, EngineSettings(model=""))
    return list(check_running(name, state, engine.read_speculation(client)))


def _show_models(console: Console, here: Machine) -> None:
    """What could be run here: models by vocabulary, and the best pair of each."""
    from slipstream.doctor.model_scan import find
    from slipstream.doctor.pairs import groups, rank

    for members in groups(find()).values():
        names = ", ".join(member.spec for member in members)
        console.print(f"models of one vocabulary: {names}")
        best = next((r for r in rank(members[0], members, here) if r.prediction), None)
        if best and best.prediction:
            p = best.prediction
            console.print(
                f"  {members[0].spec} with {best.candidate.spec} as draft: {p.speedup:.1f}x predicted, "
                f"{p.tokens_per_s:.0f} tokens/s; slipstream doctor --target … --draft … says more"
            )


def _measured(result: Diagnosis) -> list[Finding]:
    """Runs the target, or the built-in model, for 24 tokens after a warm-up."""
    from slipstream.cli.loading import fetch
    from slipstream.core.stream import Limits
    from slipstream.doctor import machine
    from slipstream.loading import load

    spec = result.case.target or "smollm2-135m"
    fetch(spec)
    engine = load(spec, drafter="none")
    for tokens in (4, 24):
        done = engine.generate("Once upon a time", limits=Limits(max_tokens=tokens, ignore_eos=True)).result()
    seconds = done.stats.total_s - done.stats.ttft_s
    return machine.check_speed(result.machine, seconds, 23, engine.target.info.weight_bytes)


def _show(result: Diagnosis) -> None:
    from rich.console import Console
    from rich.padding import Padding

    from slipstream.doctor.findings import worst_first

    console = Console(highlight=False)
    m = result.machine
    console.print(f"[bold]{m.processor}[/bold], {m.cores} cores, {m.memory_total / 1e9:.0f} GB, "
                  f"reads {m.cpu_read_bandwidth / 1e9:.0f} GB/s")  # fmt: skip
    for gpu in m.gpus:
        console.print(f"[bold]{gpu.name}[/bold], {gpu.memory_total / 1e9:.0f} GB")
    if not m.gpus:
        console.print("no GPU")
    if not result.facts:
        _show_models(console, m)
    for role, facts in result.facts.items():
        size = f"{facts.weight_bytes / 1e9:.1f} GB" if facts.weight_bytes else "size unknown"
        console.print(f"{role}: [bold]{facts.name}[/bold], {facts.quantisation_kind or facts.format}, {size}")
    for finding in worst_first(result.findings):
        console.print()
        colour = _COLOURS[finding.severity]
        console.print(f"[{colour}]{finding.severity}[/{colour}]  [bold]{finding.id}[/bold]")
        for name in ("evidence", "cause", "fix"):
            text = f"{name}: " if name != "cause" else ""
            console.print(Padding(text + getattr(finding, name).replace("[", "\\["), (0, 0, 0, 4)))
    console.print(f"\n[bold]{result.verdict.replace('[', chr(92) + '[')}[/bold]")
