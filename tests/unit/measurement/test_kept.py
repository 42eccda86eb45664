"""What was measured is printed, whatever fails after it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slipstream import cli
from slipstream.cli import tune as tune_command
from slipstream.core.generator import Answer
from slipstream.core.stats import Stats
from slipstream.errors import ContextFullError, SlipstreamError
from slipstream.measurement import measure as measuring
from slipstream.measurement import runner
from slipstream.measurement.results import RowCost
from slipstream.measurement.samples import PromptSample
from slipstream.measurement.summary import Yardstick, summarise
from slipstream.measurement.tune import Score, TuneCandidate, TuneResult
from slipstream.measurement.workload import Prompt

BENCH = [
    "bench",
    "--random-weights",
    "tiny",
    "--drafter",
    "ngram",
    "--limit",
    "2",
    "--max-tokens",
    "8",
    "--passes",
    "1",
]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """A command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["slipstream", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code if isinstance(ended.value.code, int) else 0


def fail(error: Exception) -> Any:
    def failing(*_: object, **__: object) -> None:
        raise error

    return failing


def test_a_summary_that_fails_leaves_the_samples_and_the_old_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "out.html"
    report.write_text("an older report")
    monkeypatch.setattr(measuring, "summarise", fail(ZeroDivisionError("division by zero")))
    assert run(monkeypatch, *BENCH, "--report", str(report)) == 1
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert data["schema"] == "slipstream.samples/1"
    assert {(s["drafter"], s["answers"][0]["stats"]["num_tokens"]) for s in data["samples"]} == {
        ("none", 8),
        ("ngram", 8),
    }
    assert "failed after 4 samples, which are printed as JSON: ZeroDivisionError: division by zero" in printed.err
    assert report.read_text() == "an older report"


def test_an_answer_that_fails_leaves_those_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(range(3))
    real = runner.run_conversation

    def third_fails(*arguments: Any) -> list[Answer]:
        if next(answers) == 2:
            raise ContextFullError("the prompt does not fit")
        return real(*arguments)

    monkeypatch.setattr(runner, "run_conversation", third_fails)
    assert run(monkeypatch, *BENCH) == 1
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["samples"]) == 2
    assert "the prompt does not fit" in printed.err


def test_a_report_that_can_t_be_written_comes_after_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("slipstream.measurement.report.write_result", fail(SlipstreamError("disk full")))
    assert run(monkeypatch, *BENCH, "--json", "--report", str(tmp_path / "out.html")) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["runs"]
    assert "disk full" in printed.err


@pytest.mark.parametrize("command", [[*BENCH, "--report"], ["tune", "--seconds", "5", "-o"]])
def test_a_place_that_can_not_be_written_is_refused_before_anything_runs(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for task in ("bench.bench", "tune.tune"):
        monkeypatch.setattr(f"slipstream.tasks.{task}", fail(AssertionError("it ran")))
    (tmp_path / "file").write_text("")
    for place, told in ((tmp_path, "is a folder"), (tmp_path / "file" / "out", "out can't be written")):
        assert run(monkeypatch, *command, str(place)) in (1, 2)
        assert told in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_standard_output_still_leaves_the_report(tmp_path: Path) -> None:
    report = tmp_path / "new" / "out.html"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "slipstream", *BENCH, "--report", str(report)],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "slipstream: the output can't be written: No space left on device"
    assert "<svg" in report.read_text()


def test_a_group_that_drafted_nothing_is_summarised() -> None:
    """An engine's counters may name positions although no round drafted."""
    stats = Stats(num_tokens=4, rounds=4, target_forwards=4, ttft_s=0.1, total_s=0.5, drafted_at=Counter({1: 0}))
    sample = PromptSample("ngram", Prompt("p", "chat", ("hello",)), 0, (Answer("text", (), "length", stats),))
    runs = summarise([sample], Yardstick(0, [RowCost(1, 1.0, 1.0)]))
    assert runs[0].accepted_by_position == []


def test_tune_prints_before_it_writes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    result = TuneResult([Score(TuneCandidate("ngram", "auto"))], [], 1.0, complete=True)
    monkeypatch.setattr(tune_command, "_print", lambda result, model: print("the choice"))
    monkeypatch.setattr(tune_command, "_comments", lambda result, model: [])
    monkeypatch.setattr(tune_command, "write_settings", fail(SlipstreamError("disk full")))
    with pytest.raises(SlipstreamError, match="disk full"):
        tune_command._finish(result, tune_command.FileSettings("m"), Path("x.yaml"), False)
    assert capsys.readouterr().out == "the choice\n"


def test_an_audit_that_fails_shows_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny: Any
) -> None:
    from slipstream.loading import LoadedPair
    from slipstream.measurement.audit import AuditedAnswer
    from slipstream.tasks import audit as audit_task
    from slipstream.tasks.models import Models

    def one_then_fails(result: audit_task.AuditResult, *arguments: Any) -> None:
        result.answers.append(AuditedAnswer("p", "ngram", 0.0, 0, "identical", 8, 4))
        raise ContextFullError("the prompt does not fit")

    monkeypatch.setattr(audit_task, "load_models", lambda options, *others: Models(LoadedPair(tiny), options))
    monkeypatch.setattr(audit_task, "_run", one_then_fails)
    assert run(monkeypatch, "audit", "--json", "--drafter", "ngram", "--limit", "1") == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["partial"] is True
    assert "the prompt does not fit" in printed.err
