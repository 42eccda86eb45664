"""`slipstream doctor`: checks whether a pair works on an engine and this machine, and explains why if not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter
from slipstream.tasks.options import DoctorOptions, RunningEngineOptions

if TYPE_CHECKING:
    from rich.console import Console

    from slipstream.diagnosis.examine import Diagnosis
    from slipstream.predict.machine import Machine

_COLOURS = {"blocks": "red", "unknown": "magenta", "slows": "yellow", "note": "dim"}


@grouped(
    target=opt.OptionSpec("--target -m --model", "The model that answers.", "Models"),
    draft=opt.OptionSpec("--draft -d", "The model that drafts.", "Models"),
    engine=opt.OptionSpec(
        "--engine -e", "slipstream, llama-server (llama.cpp), vllm, sglang, transformers, tabbyapi (exllama), ollama."
    ),
    config=opt.OptionSpec("--config", "An engine's command line, JSON, config.yml or Modelfile to check."),
    log=opt.OptionSpec("--log", "An engine's log to explain; - reads standard input."),
    context=opt.OptionSpec("--context", "Tokens of prompt and answer that you need."),
    batch=opt.OptionSpec("--batch", "Requests at the same time.", more={"min": 1}),
    python=opt.OptionSpec("--python", "The Python of the engine's environment: its torch is tested on the files."),
    measure=opt.OptionSpec("--measure", "Also run the target briefly, and check its speed."),
    url=opt.OptionSpec("--url", "The URL of a running engine: check whether it really speculates."),
    plain_url=None,
)
def doctor(
    options: DoctorOptions = DoctorOptions(),
    running: RunningEngineOptions = RunningEngineOptions(),
    as_json: opt.Json = False,
) -> None:
    """Check whether a target, a draft, an engine and this machine work together, before you run them.

    Every finding has the evidence, the cause and the fix. The exit code is 1 if a finding blocks,
    and 3 if a log ends with an error that is not known.

    [bold]Examples[/bold]

      slipstream doctor

      slipstream doctor --target llama-8b.gguf --draft llama-1b.gguf --engine llama.cpp

      slipstream doctor --engine llama-server --url http://127.0.0.1:8080

      slipstream doctor --engine vllm --config serve.sh --log vllm.log
    """
    from slipstream.tasks.doctor import doctor as run_doctor

    if options.log == Path("-"):
        options = replace(options, log=Path("/dev/stdin"))
    with TerminalReporter() as reporter:
        result = run_doctor(options, running, reporter=reporter)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    else:
        _show(result)
    if result.is_blocked:
        raise typer.Exit(1)
    if result.is_unknown:
        raise typer.Exit(3)


def _show_models(console: Console, here: Machine) -> None:
    from slipstream.tasks.pairs import best_pairs

    for pair in best_pairs(here):
        names = ", ".join(model.spec for model in pair.models)
        console.print(f"models with the same vocabulary: {names}")
        if pair.draft and pair.draft.prediction:
            p = pair.draft.prediction
            console.print(
                f"  {pair.models[0].spec} with {pair.draft.candidate.spec} as draft: {p.speedup:.1f}x predicted, "
                f"{p.tokens_per_s:.0f} tokens/s; for details: slipstream doctor --target … --draft …"
            )


def _show(result: Diagnosis) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding

    from slipstream.findings import worst_first

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
            console.print(Padding(text + escape(getattr(finding, name)), (0, 0, 0, 4)))
    console.print(f"\n[bold]{escape(result.verdict)}[/bold]")
