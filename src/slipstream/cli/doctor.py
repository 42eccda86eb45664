"""`slipstream doctor`: checks whether a pair works on an engine and this machine, and explains why if not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter, result_console
from slipstream.tasks.options import DoctorOptions, RunningEngineOptions

if TYPE_CHECKING:
    from rich.console import Console

    from slipstream.diagnosis.examine import Diagnosis
    from slipstream.diagnosis.log_figures import Figure
    from slipstream.findings import Finding
    from slipstream.predict.machine import Machine

MAX_VERDICT = 100  # characters
MAX_SHOWN = 100  # findings; --json has all
_INDENT = "    "
_COLOURS = {"blocks": "red", "unknown": "magenta", "slows": "yellow", "note": "dim"}


@grouped(
    target=opt.OptionSpec("--target -m --model", "The model that answers.", "Models"),
    draft=opt.OptionSpec("--draft -d", "The model that drafts.", "Models"),
    engine=opt.OptionSpec("--engine -e", opt.ALL_ENGINES_HELP),
    config=opt.OptionSpec(
        "--config", "An engine's command line or script, JSON, config.yml, Modelfile or Python script to check."
    ),
    log=opt.OptionSpec(
        "--log", "A log, or any text with an error or speeds, to explain; - reads standard input, here and in --config."
    ),
    context=opt.OptionSpec("--context", "Tokens of prompt and answer that you need.", more={"min": 1}),
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
    """Check whether a target, a draft, an engine and this machine work together, and explain why if not.

    Give it what you have; each part alone is enough: models, a configuration (the command line or script that starts
    the engine, JSON, config.yml, a Modelfile, a Python script), a log or any text with the error message or the
    measured speeds, or the URL of a running engine. Without anything, it checks this machine.

    Every finding has what was found, what it means and what to do. The last line is the verdict, with an exit code:

      0  no finding, or only findings that cost speed

      1  blocked: a finding stops it

      3  unknown: a failure that no rule explains, a log that does not show the engine at work, or a file that is not
      recognised

    [bold]Examples[/bold]

      slipstream doctor

      slipstream doctor --target llama-8b.gguf --draft llama-1b.gguf --engine llama.cpp

      slipstream doctor --draft small-model      (checks its files only)

      slipstream doctor --engine llama-cpp-python --config run.py --log output.txt

      slipstream doctor --engine vllm --config serve.sh --log vllm.log

      slipstream doctor --engine llama-server --url http://127.0.0.1:8080
    """
    from slipstream.tasks.doctor import doctor as run_doctor

    options = replace(options, log=_or_stdin(options.log), config=_or_stdin(options.config))
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


def _or_stdin(path: Path | None) -> Path | None:
    return Path("/dev/stdin") if path == Path("-") else path


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
    from slipstream.findings import worst_first

    console = result_console()
    _show_machine(console, result.machine)
    case = result.case
    if not any((case.target, case.draft, case.log, case.config)):
        _show_models(console, result.machine)
    for role, facts in result.facts.items():
        size = f"{facts.weight_bytes / 1e9:.1f} GB" if facts.weight_bytes else "size unknown"
        console.print(f"{role}: {facts.name}, {facts.quantisation_kind or facts.format or 'format unknown'}, {size}")
    findings = worst_first(result.findings)
    for finding in findings[:MAX_SHOWN]:
        _show_finding(console, finding)
    if len(findings) > MAX_SHOWN:
        console.print(f"\nand {len(findings) - MAX_SHOWN:,} more findings: --json lists all")
    _show_figures(console, result.figures)
    _show_verdict(console, result)


def _show_machine(console: Console, machine: Machine) -> None:
    bandwidth = f"reads {machine.cpu_read_bandwidth / 1e9:.0f} GB/s"
    console.print(f"{machine.processor}, {machine.cores} cores, {machine.memory_total / 1e9:.0f} GB, {bandwidth}")
    for gpu in machine.gpus:
        console.print(f"{gpu.name}, {gpu.memory_total / 1e9:.0f} GB")
    if not machine.gpus:
        console.print("no GPU")


def _show_finding(console: Console, finding: Finding) -> None:
    """The title first, then what was found, what it means, and what to do."""
    from rich.text import Text

    console.print()
    head = Text(f"{finding.severity}  ", style=_COLOURS[finding.severity])
    console.print(head.append(finding.title, style="bold").append(f"  {finding.id}", style="dim"))
    for text in (f"found: {finding.evidence}", finding.cause, f"to do: {finding.fix}"):
        _show_text(console, text, _INDENT)


def _show_text(console: Console, text: str, indent: str) -> None:
    """Wrapped, without spaces at the end of lines."""
    from rich.text import Text

    for line in Text(text).wrap(console, console.width - len(indent)):
        line.rstrip()
        console.print(Text(indent).append_text(line))


def _show_figures(console: Console, figures: list[Figure]) -> None:
    if figures:
        console.print("\nfigures in the log", style="bold")
    for figure in figures:
        console.print(f"{_INDENT}{figure.shown}  (line {figure.line:,})")


def _show_verdict(console: Console, result: Diagnosis) -> None:
    """What was checked, one line that fits, and the prediction below it."""
    console.print()
    _show_text(console, f"checked: {', '.join(result.checked)}", "")
    console.print(verdict_line(result, min(console.width, MAX_VERDICT)), style="bold")
    if result.prediction and not result.is_blocked:
        console.print(f"predicted: {result.prediction}")


def verdict_line(result: Diagnosis, width: int) -> str:
    """The verdict in one line: its first words, and the title of the worst finding in place of the whole cause."""
    from slipstream.findings import worst_first

    words, worst = re.split(r"[:.] | \(", result.verdict)[0], worst_first(result.findings)[:1]
    if worst and worst[0].severity != "note":
        words = f"{words}: {worst[0].title}"
        if len(words) + len(worst[0].evidence) + 3 <= width:
            words = f"{words} ({worst[0].evidence})"
    return words if len(words) <= width else f"{words[: width - 1]}…"
