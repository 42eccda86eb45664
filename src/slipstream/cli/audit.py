"""`slipstream audit`: prove that speculation does not change the text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import engine_options as eng
from slipstream.cli import options as opt

if TYPE_CHECKING:
    from slipstream.bench.audit import Finding
    from slipstream.bench.workload import Prompt
    from slipstream.cli.loading import Models
    from slipstream.core.sampling import Sampling
    from slipstream.core.stream import Limits

DEFAULT_TEMPERATURES = "0,0.8,1.2"


def audit(
    model: opt.Model = None,
    draft: opt.Draft = None,
    drafter: opt.Drafters = None,
    policy: opt.PolicyOption = None,
    prompts: opt.Prompts = None,
    limit: opt.Limit = 4,
    max_tokens: opt.MaxTokens = 64,
    temperatures: Annotated[
        str, typer.Option("--temperatures", help="Separated by commas; 0 is greedy.", rich_help_panel="Sampling")
    ] = DEFAULT_TEMPERATURES,
    top_p: opt.TopP = 1.0,
    repetition_penalty: opt.RepetitionPenalty = 1.0,
    seed: opt.Seed = 0,
    engine: eng.Engine = None,
    url: eng.Url = None,
    plain_url: eng.PlainUrl = None,
    api_key: eng.ApiKey = None,
    api_key_file: eng.ApiKeyFile = None,
    program: eng.Program = None,
    engine_args: eng.EngineArgs = "",
    start_limit: eng.StartLimit = 600.0,
    exact: opt.Exact = False,
    device: opt.Device = "auto",
    dtype: opt.DType = "auto",
    context: opt.Context = None,
    threads: opt.Threads = None,
    backend: opt.BackendOption = None,
    gpu_layers: opt.GpuLayers = None,
    kv_type: opt.KvType = "auto",
    as_json: opt.Json = False,
) -> None:
    """Compare speculative answers with plain ones, token by token. Exit 1 on a bug.

    A difference is a tie when the two tokens' logits lie so close that rounding decides, and a BUG otherwise.

    [bold]Examples[/bold]

      slipstream audit

      slipstream audit --drafter "suffix(width=3),early-exit" --temperatures 0,1 --limit 16

      slipstream audit --engine llama-server --model big.gguf --draft small.gguf

      slipstream audit --model big.gguf --draft small.gguf --prompts question.jsonl
    """
    from slipstream.cli.bench import default_drafters, progress_bar
    from slipstream.cli.loading import load_models
    from slipstream.core.stream import Limits

    workload = opt.read_workload(prompts, limit)
    samplings = [
        opt.make_sampling(t, 0, top_p, 0.0, repetition_penalty, 0.0, 0.0, None, seed)
        for t in opt.parse_numbers(temperatures, "--temperatures")
    ]
    limits = Limits(max_tokens)
    if engine:
        from slipstream.cli.audit_engine import audit_engine
        from slipstream.cli.bench_engine import Contest

        eng.refuse_with_engine(
            device=device, dtype=dtype, threads=threads, exact=exact,
            backend=backend, gpu_layers=gpu_layers, kv_type=kv_type,
        )  # fmt: skip
        choice = eng.EngineChoice(engine, program, engine_args, start_limit, context or eng.BENCH_CONTEXT)
        drafting = eng.Drafting.resolve(engine, model, draft, None, policy)
        key = eng.read_api_key(api_key, api_key_file)
        contest = Contest(choice, drafting, drafter.split(",") if drafter else [], url, plain_url, key)
        with progress_bar("auditing") as progress:
            done = audit_engine(contest, workload, samplings, limits, progress)
        facts: dict[str, object] = {"name": drafting.model, "engine": engine}
        _finish(done.findings, _Audited(f"{drafting.model} on {engine}", facts), done.complete, as_json)
        return
    eng.refuse_without_engine(url=url, plain_url=plain_url, program=program, engine_args=engine_args)
    settings = opt.LoadSettings.resolve(
        model, draft, None, policy, device, dtype, context, threads, exact,
        backend, gpu_layers, kv_type,
    )  # fmt: skip
    models = load_models(settings)
    drafters = opt.split_drafters(drafter) if drafter else default_drafters(models)
    info = models.target.model.info
    title = f"{info.name}, {info.dtype}, {info.device}"
    audited = _Audited(title, asdict(info), models.target.tokenizer.token_text)
    findings: list[Finding] = []
    try:
        complete = _run(models, drafters, workload, samplings, limits, findings)
    except Exception:  # of any kind: what was found until then is shown, and the error raised
        if findings:
            _show(findings, audited, False, as_json)
        raise
    _finish(findings, audited, complete, as_json)


@dataclass(frozen=True, slots=True)
class _Audited:
    """What was audited. `spell` writes a token out; None where an engine only tells texts."""

    title: str
    facts: dict[str, object]
    spell: Callable[[int], str] | None = None


def _finish(findings: list[Finding], audited: _Audited, complete: bool, as_json: bool) -> None:
    """Shows the findings. Exit 1 on a bug, and where nothing was compared."""
    _show(findings, audited, complete, as_json)
    if not findings or any(f.outcome == "BUG" for f in findings):
        raise typer.Exit(1)


def _show(findings: list[Finding], audited: _Audited, complete: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_as_dict(findings, audited, complete), ensure_ascii=False))
    else:
        _print(findings, audited, complete)


def _run(
    models: Models,
    drafters: Sequence[str],
    prompts: Sequence[Prompt],
    samplings: Sequence[Sampling],
    limits: Limits,
    findings: list[Finding],
) -> bool:
    """Adds findings as they come; whether that is all of them."""
    from slipstream.bench.audit import audit, logit_gap, tie_tolerance
    from slipstream.bench.engine_generator import EngineGenerator
    from slipstream.bench.results import PLAIN
    from slipstream.cli.bench import progress_bar

    generators = [EngineGenerator(label, partial(models.engine, label)) for label in [PLAIN, *drafters]]
    target = models.target
    encode = models.engine(PLAIN).encode
    gap_of = logit_gap(target.model, lambda prompt: encode(prompt.request()))
    tolerance = tie_tolerance(target.model.info)
    total = len(prompts) * len(samplings) * len(drafters)
    with progress_bar("auditing") as progress:
        try:
            for finding in audit(generators[0], generators[1:], prompts, samplings, limits, tolerance, gap_of):
                findings.append(finding)
                progress(len(findings), total, f"{finding.drafter}: {finding.outcome}")
        except KeyboardInterrupt:
            return False
    return True


def _print(findings: list[Finding], audited: _Audited, complete: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{'' if complete else 'PARTIAL '}audit of {audited.title}")
    for column in ("drafter", "answers", "tokens", "accepted", "identical", "ties", "bugs"):
        table.add_column(column, justify="left" if column == "drafter" else "right")
    for drafter in dict.fromkeys(f.drafter for f in findings):
        own = [f for f in findings if f.drafter == drafter]
        counts = [sum(f.outcome == outcome for f in own) for outcome in ("identical", "tie", "BUG")]
        table.add_row(
            drafter, str(len(own)), str(sum(f.num_tokens for f in own)), str(sum(f.num_accepted for f in own)),
            *map(str, counts),
        )  # fmt: skip
    console.print(table)
    for f in findings:
        if f.difference:
            console.print(_difference_line(f, audited.spell), highlight=False)
    console.print(_conclusion(findings))


def _conclusion(findings: list[Finding]) -> str:
    if not findings:
        return "nothing was compared"
    if all(f.outcome == "identical" for f in findings):
        return "text identical: yes"
    bugs, ties = (sum(f.outcome == outcome for f in findings) for outcome in ("BUG", "tie"))
    return f"{bugs} bugs, {ties} numeric ties"


def _difference_line(f: Finding, spell: Callable[[int], str] | None) -> str:
    assert f.difference is not None
    d = f.difference
    gap = "" if d.gap is None else f", logit gap {d.gap:.2g}"
    where = f"{f.outcome}: {f.drafter}, {f.prompt_id}, temperature {f.temperature}, seed {f.seed}"
    if spell is None:
        return f"{where}: the texts part at character {d.position}{gap or ' (no probabilities to judge it by)'}"
    tokens = [repr(spell(t)) if t >= 0 else "the end" for t in (d.plain_token, d.other_token)]
    return (
        f"{where}: at token {d.position} plain decoding has {tokens[0]} ({d.plain_token}), "
        f"this has {tokens[1]} ({d.other_token}){gap}"
    )


def _as_dict(findings: list[Finding], audited: _Audited, complete: bool) -> dict[str, object]:
    return {
        "schema": "slipstream.audit/1",
        "model": audited.facts,
        "partial": not complete,
        "identical": bool(findings) and all(f.outcome == "identical" for f in findings),
        "bugs": sum(f.outcome == "BUG" for f in findings),
        "ties": sum(f.outcome == "tie" for f in findings),
        "findings": [asdict(f) for f in findings],
    }
