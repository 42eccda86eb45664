"""`slipstream audit`: checks that speculation does not change the text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from slipstream.backends import MachineOptions
from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter, result_console
from slipstream.tasks.options import (
    AUDIT_WORKLOAD,
    AuditOptions,
    EngineOptions,
    ModelOptions,
    RunningEngineOptions,
    WorkloadOptions,
)

if TYPE_CHECKING:
    from slipstream.measurement.audit import AuditedAnswer
    from slipstream.tasks.audit import AuditResult


@grouped(drafter=opt.DRAFTERS)
def audit(
    models: ModelOptions = ModelOptions(),
    workload: WorkloadOptions = AUDIT_WORKLOAD,
    options: AuditOptions = AuditOptions(),
    engine: EngineOptions = EngineOptions(),
    running: RunningEngineOptions = RunningEngineOptions(),
    machine: MachineOptions = MachineOptions(),
    as_json: opt.Json = False,
) -> None:
    """Compare speculative answers with plain ones, token by token.

    A difference is a tie if the two tokens' logits are so close that rounding decides, and a BUG otherwise. The exit
    code is 1 if there is a bug, or if a drafter proposed nothing, because then nothing was tested.

    [bold]Examples[/bold]

      slipstream audit

      slipstream audit --drafter "suffix(width=3),early-exit" --temperatures 0,1 --limit 16

      slipstream audit --engine llama-server --model big.gguf --draft small.gguf

      slipstream audit --model big.gguf --draft small.gguf --prompts question.jsonl
    """
    from slipstream.tasks.audit import audit as run_audit

    with TerminalReporter("auditing") as reporter:
        result = run_audit(
            models, workload, options, machine=machine, engine=engine, running=running, reporter=reporter
        )
    if as_json:
        print(json.dumps(result.to_dict(), ensure_ascii=False))
    else:
        _print(result)
    if result.error:
        raise result.error
    if not result.passed:
        raise typer.Exit(1)


def _print(result: AuditResult) -> None:
    from rich.table import Table

    from slipstream.measurement.table import print_fitted

    answers, console = result.answers, result_console()
    table = Table(title=f"{'' if result.complete else 'PARTIAL '}audit of {result.title}")
    for column in ("drafter", "answers", "tokens", "drafted", "accepted", "identical", "ties", "bugs"):
        table.add_column(column, justify="left" if column == "drafter" else "right")
    for drafter in dict.fromkeys(f.drafter for f in answers):
        own = [f for f in answers if f.drafter == drafter]
        counts = [sum(f.outcome == outcome for f in own) for outcome in ("identical", "tie", "BUG")]
        table.add_row(
            drafter, str(len(own)), str(sum(f.num_tokens for f in own)), _drafted(own),
            str(sum(f.num_accepted for f in own)), *map(str, counts),
        )  # fmt: skip
    print_fitted(console, table)
    for f in answers:
        if f.difference:
            console.print(_difference_line(f, result.spell))
    console.print(_conclusion(result))


def _drafted(answers: list[AuditedAnswer]) -> str:
    counts = [f.num_drafted for f in answers if f.num_drafted is not None]
    return str(sum(counts)) if counts else "?"


def _conclusion(result: AuditResult) -> str:
    from slipstream.measurement.results import NO_COUNTERS, NOTHING_SHOWN

    if not result.answers:
        return "nothing was compared"
    idle = result.drafted_nothing
    others = {f.drafter for f in result.answers} - set(idle)
    lines = [f"{', '.join(idle)}: {NOTHING_SHOWN}"] if idle else []
    if any(f.difference for f in result.answers):
        lines.append(f"{result.count('BUG')} bugs, {result.count('tie')} numeric ties")
    elif others:
        lines.append(f"{', '.join(sorted(others))}: text identical: yes" if idle else "text identical: yes")
    if any(f.num_drafted is None for f in result.answers):
        lines.append(NO_COUNTERS)
    return "\n".join(lines)


def _difference_line(f: AuditedAnswer, spell: Callable[[int], str] | None) -> str:
    assert f.difference is not None
    d = f.difference
    gap = "" if d.gap is None else f", logit gap {d.gap:.2g}"
    where = f"{f.outcome}: {f.drafter}, {f.prompt_id}, temperature {f.temperature}, seed {f.seed}"
    if spell is None:
        return f"{where}: the texts differ from character {d.position} on{gap or ' (no probabilities to judge it by)'}"
    tokens = [repr(spell(t)) if t >= 0 else "the end" for t in (d.plain_token, d.other_token)]
    return (
        f"{where}: at token {d.position} plain decoding has {tokens[0]} ({d.plain_token}), "
        f"this has {tokens[1]} ({d.other_token}){gap}"
    )
