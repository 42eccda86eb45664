"""Where nothing was drafted, nothing was shown: no speed-up, no equal text, and no lost result."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import slipstream.measurement
from slipstream import cli
from slipstream.cli import audit as audit_command
from slipstream.cli import bench as bench_command
from slipstream.core.generator import Answer
from slipstream.core.stats import Stats
from slipstream.measurement import table
from slipstream.measurement.audit import AuditedAnswer
from slipstream.measurement.kept import written_first
from slipstream.measurement.load_test import LoadRun
from slipstream.measurement.load_test_result import load_result
from slipstream.measurement.report import render
from slipstream.measurement.results import NO_COUNTERS, BenchResult
from slipstream.measurement.runner import BenchSettings
from slipstream.measurement.samples import PromptSample
from slipstream.measurement.summary import Yardstick, summarise
from slipstream.measurement.table import print_table
from slipstream.measurement.verdict import overall
from slipstream.measurement.workload import Prompt
from slipstream.tasks.audit import AuditResult

NOTHING = "nothing was drafted: nothing was shown"
COUNTING = [
    "load_test",
    "load_test_result",
    "measure",
    "row_cost",
    "samples",
    "summary",
    "table",
    "tune",
    "tune_restarts",
    "verdict",
]


def sample(drafter: str, drafted: int | None = 0, *, speed: float = 10.0, text: str = "same") -> PromptSample:
    """`drafted` None: an engine without counters."""
    stats = Stats(
        num_tokens=11, rounds=11, num_drafted=drafted or 0, num_accepted=(drafted or 0) // 2, ttft_s=0.1,
        total_s=0.1 + 10 / speed, drafts_counted=drafted is not None,
    )  # fmt: skip
    return PromptSample(drafter, Prompt("p", "chat", ("hello",)), 0, (Answer(text, (), "length", stats),))


def result_of(*samples: PromptSample) -> BenchResult:
    described = {"model": "m", "dtype": "x", "device": "y"}
    return load_result(LoadRun([sample("none"), *samples]), BenchSettings(), described, "command")


def test_a_loss_without_one_cause_is_told_by_what_a_step_gives_and_takes() -> None:
    plain = [replace(sample("none"), prompt=Prompt(str(i), "chat", ("hello",))) for i in range(6)]
    slow = [replace(sample("model", 10, speed=5.0), prompt=one.prompt) for one in plain]
    described = {"model": "m", "dtype": "x", "device": "y"}
    run = load_result(LoadRun([*plain, *slow]), BenchSettings(), described, "command").runs[1]
    assert run.verdict.word == "does not pay"
    assert "a step gives 1.00 tokens and takes 2.0x as long as a plain one" in run.verdict.why


def test_a_faster_run_that_drafted_nothing_gets_no_speedup_and_no_equal_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = result_of(sample("ngram", 0, speed=20.0))
    assert (result.verdict.word, result.runs[1].verdict.word) == ("nothing drafted", "nothing drafted")
    assert result.to_dict()["runs"][1]["drafted"] is False
    print_table(result)
    said = " ".join(capsys.readouterr().out.split())
    assert NOTHING in said
    assert "text identical" not in said and "2.00x" not in said
    html = render(json.loads(json.dumps(result.to_dict())))
    assert "<h1>Nothing was drafted: nothing was shown</h1>" in html
    assert "not shown <small>nothing was drafted</small>" in html
    assert "2.00×" not in html


def test_the_own_engine_s_verdict_is_that_of_a_drafter_that_drafted() -> None:
    yardstick = Yardstick(0, [])
    samples = [sample("none"), sample("idle", 0, speed=30.0), sample("busy", 8, speed=12.0)]
    assert overall(summarise(samples, yardstick)).why.startswith("busy: 1.20x")
    assert overall(summarise(samples[:2], yardstick)).word == "nothing drafted"


def test_a_drafter_that_surely_pays_is_better_than_one_that_may_be_faster() -> None:
    runs = result_of(sample("sure", 8, speed=13.0), sample("maybe", 8, speed=14.0)).runs
    unsure = [
        replace(run, verdict=replace(run.verdict, word="no difference")) if run.drafter == "maybe" else run
        for run in runs
    ]
    assert overall(runs).why.startswith("maybe: 1.40x")
    assert overall(unsure).word == "pays"
    assert overall(unsure).why.startswith("sure: 1.30x")


def test_one_drafter_that_drafted_is_compared_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    result = result_of(sample("idle", 0), sample("busy", 8, speed=20.0))
    assert result.verdict.word == "pays"
    assert "idle, chat: nothing drafted (" in result.verdict.why
    print_table(result)
    assert "text identical: yes" in capsys.readouterr().out


def test_kinds_and_notes_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    odd = [replace(one, prompt=Prompt("p", "[/b]", ("hello",))) for one in (sample("none"), sample("busy", 8))]
    described = {"model": "m", "dtype": "x", "device": "y"}
    result = load_result(LoadRun(odd), BenchSettings(), described, "command")
    print_table(replace(result, notes=["stopped early: [/tmp/x]"]))
    said = capsys.readouterr().out
    assert "[/b]" in said and "[/tmp/x]" in said


def test_a_text_that_differs_is_broken_also_without_drafts() -> None:
    assert result_of(sample("ngram", 0, text="other")).verdict.word == "broken"


def test_without_counters_a_speedup_stays_and_the_drafts_are_unknown() -> None:
    run = result_of(sample("ngram", None, speed=20.0)).runs[1]
    assert run.drafted is None
    assert (run.verdict.word, run.verdict.why) == ("pays", NO_COUNTERS)


def test_a_summary_of_empty_counters_divides_by_nothing() -> None:
    empty = [
        PromptSample(name, Prompt("p", "chat", ("hello",)), 0, (Answer("", (), "stop", Stats()),))
        for name in ("none", "ngram")
    ]
    runs = summarise(empty, Yardstick(10, []))
    assert [run.tokens_per_s for run in runs] == [0.0, 0.0]
    json.dumps([asdict(run) for run in runs])


def test_samples_are_on_disk_before_they_are_summarised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), written_first([sample("ngram")]):
        raise KeyboardInterrupt  # nothing is printed for this one
    written = json.loads((tmp_path / "bench" / "samples.json").read_text())
    assert written["samples"][0]["drafter"] == "ngram"


def test_a_table_that_fails_leaves_the_result_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(result: BenchResult) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(table, "print_table", failing)
    with pytest.raises(ZeroDivisionError):
        bench_command.print_result(result_of(sample("ngram", 4)), as_json=False)
    assert json.loads(capsys.readouterr().out)["runs"]


@pytest.mark.parametrize("module", COUNTING)
def test_what_is_counted_is_divided_by_ratio(module: str) -> None:
    """A division by anything but a number in the code can be one by zero."""
    source = Path(slipstream.measurement.__path__[0], f"{module}.py").read_text()
    divisions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    ]
    assert [ast.unparse(node) for node in divisions if not isinstance(node.right, ast.Constant)] == []


def audit_of(**drafted: int | None) -> AuditResult:
    answers = [AuditedAnswer("p", name, 0.0, 0, "identical", 8, 0, num_drafted=n) for name, n in drafted.items()]
    return AuditResult("model", {}, answers)


@pytest.mark.parametrize(
    ("result", "identical", "passed", "said"),
    [
        (audit_of(ngram=0), None, False, f"ngram: {NOTHING}"),
        (audit_of(ngram=0, suffix=4), None, False, f"ngram: {NOTHING}\nsuffix: text identical: yes"),
        (audit_of(ngram=2, suffix=4), True, True, "text identical: yes"),
        (audit_of(ngram=None), True, True, f"text identical: yes\n{NO_COUNTERS}"),
        (AuditResult("model", {}), False, False, "nothing was compared"),
    ],
)
def test_an_audit_shows_nothing_of_a_drafter_that_drafted_nothing(
    result: AuditResult, identical: bool | None, passed: bool, said: str
) -> None:
    assert (result.identical, result.passed) == (identical, passed)
    assert result.to_dict()["identical"] is identical
    assert audit_command._conclusion(result) == said


def test_the_audit_command_fails_where_nothing_was_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.tasks.audit.audit", lambda *_, **__: audit_of(ngram=0))
    monkeypatch.setattr(sys, "argv", ["slipstream", "audit"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
