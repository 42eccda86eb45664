"""Turns a load run into a BenchResult, with the figures that only a load run has as notes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from slipstream.measurement.load_test import LoadRun
from slipstream.measurement.machine import describe_machine
from slipstream.measurement.results import (
    ALL_KINDS,
    NOT_COMPARED,
    NOTHING_DRAFTED,
    PLAIN,
    BenchResult,
    BenchVerdict,
    Run,
    VerdictWord,
)
from slipstream.measurement.runner import BenchSettings
from slipstream.measurement.summary import Yardstick, summarise


def load_result(
    run: LoadRun, settings: BenchSettings, described: dict[str, Any], command: str, forced_acceptance: bool = False
) -> BenchResult:
    """`described` names model, engine and address. Weights and row costs of another engine are not visible here."""
    every = summarise(run.samples, Yardstick(weight_bytes=0, cost_by_rows=(), forced_acceptance=forced_acceptance))
    runs = _judged([one for one in every if one.kind != ALL_KINDS])
    facts = {
        "max_tokens": settings.limits.max_tokens,
        "temperature": settings.sampling.temperature,
        "seed": settings.sampling.seed,
        "passes": settings.passes,
        "prompt_cache": "warm" if settings.warm_prompts else "cold, if the engine supports it",
    }
    stopped = [f"stopped early: {run.error}"] if run.error else []
    return BenchResult(
        machine=replace(describe_machine("cpu"), copy_gb_per_s=0.0),
        settings=described | facts,
        runs=runs,
        verdict=_verdict(runs),
        command=command,
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        notes=[*stopped, *_first_tokens(runs), *_throughputs(run)],
        partial=not run.complete,
        synthetic=forced_acceptance,
    )


def _judged(runs: Sequence[Run]) -> list[Run]:
    """A run that stopped early may lack plain decoding. The other runs then get no verdict."""
    measured = {run.kind for run in runs if run.drafter == PLAIN}
    missing = BenchVerdict(NOT_COMPARED, "plain decoding was not measured with this number of streams")
    return [run if run.kind in measured else replace(run, verdict=missing) for run in runs]


def _verdict(runs: Sequence[Run]) -> BenchVerdict:
    """One verdict per number of streams: what pays off for one stream may not for sixteen, so they are never
    combined.
    """
    judged = [run for run in runs if run.drafter != PLAIN]
    if not judged or all(run.verdict.word == NOT_COMPARED for run in judged):
        return BenchVerdict(NOT_COMPARED, "nothing was compared with plain decoding")
    words = {run.verdict.word for run in judged}
    order: tuple[VerdictWord, ...] = ("broken", "pays", "does not pay", "no difference", NOTHING_DRAFTED, NOT_COMPARED)
    word = next(word for word in order if word in words)
    return BenchVerdict(word, "; ".join(_judgement(run) for run in judged))


def _judgement(run: Run) -> str:
    """The verdict of one run, with its speed-up if it has one."""
    has_speedup = run.verdict.word not in (NOTHING_DRAFTED, NOT_COMPARED)
    speedup = f", {run.speedup.value:.2f}x" if has_speedup else ""
    return f"{run.drafter}, {run.kind}: {run.verdict.word}{speedup} ({run.verdict.why})"


def _first_tokens(runs: Sequence[Run]) -> list[str]:
    """Time to the first token, by number of streams."""
    lines = []
    for kind in dict.fromkeys(run.kind for run in runs):
        shown = ", ".join(f"{_name(r.drafter)} {r.ttft_s:.2f} s" for r in runs if r.kind == kind)
        lines.append(f"time to first token, {kind}: {shown}")
    return lines


def _throughputs(run: LoadRun) -> list[str]:
    lines = []
    for streams in sorted({t.streams for t in run.throughputs}):
        own = [t for t in run.throughputs if t.streams == streams]
        labels = sorted({t.generator for t in own}, key=lambda label: (label != PLAIN, label))
        medians = {label: statistics.median(t.tokens_per_s for t in own if t.generator == label) for label in labels}
        shown = ", ".join(f"{_name(label)} {speed:.1f} tokens/s" for label, speed in medians.items())
        lines.append(f"throughput of all streams, {streams}: {shown}")
    return lines


def _name(label: str) -> str:
    return "plain" if label == PLAIN else label
