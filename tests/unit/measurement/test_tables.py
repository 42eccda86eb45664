"""Tables of results: a pipe cuts nothing, a narrow terminal cuts no figure."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from slipstream.cli.tune import _print as print_tuned
from slipstream.core.generator import Answer
from slipstream.core.stats import Stats
from slipstream.measurement.load_test import LoadRun
from slipstream.measurement.load_test_result import load_result
from slipstream.measurement.runner import BenchSettings
from slipstream.measurement.samples import PromptSample
from slipstream.measurement.table import print_table
from slipstream.measurement.tune import OFF, Score, TuneCandidate, TuneResult
from slipstream.measurement.workload import Prompt

KIND, DRAFTER = "a kind of text with a long name", "chained:suffix(width=3),model(p_min=0.35,n_parallel=4)"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def measured() -> None:
    def sample(drafter: str, speed: float) -> PromptSample:
        stats = Stats(num_tokens=11, rounds=6, num_drafted=10, num_accepted=5, ttft_s=0.1, total_s=0.1 + 10 / speed)
        return PromptSample(drafter, Prompt("p", KIND, ("hello",)), 0, (Answer("same", (), "length", stats),))

    samples = [sample("none", 1000.0), sample(DRAFTER, 1874.3)]
    print_table(load_result(LoadRun(samples), BenchSettings(), {"model": "m", "dtype": "x", "device": "y"}, "command"))


def tuned() -> None:
    score = Score(TuneCandidate(DRAFTER, "fixed(4)"), ratios=[1.87] * 6, num_drafted=40, num_accepted=20)
    print_tuned(TuneResult([score, replace(score, candidate=OFF)], [], 60.0, True), "m")


@pytest.mark.parametrize(("show", "figures"), [(measured, ("1874.3", "1.70–2.06")), (tuned, ("1.87–1.87", "50%"))])
def test_a_pipe_cuts_nothing(
    show: Callable[[], None], figures: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = printed(show, io.StringIO(), 60, monkeypatch)
    assert "…" not in said
    assert any(all(cell in line for cell in (DRAFTER, *figures)) for line in said.splitlines())


@pytest.mark.parametrize(
    ("show", "figures"), [(measured, ("1874.3", "1.87x", "50%", "1.83")), (tuned, ("1.87x", "50%"))]
)
def test_on_a_narrow_terminal_the_interval_goes_and_names_wrap(
    show: Callable[[], None], figures: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = printed(show, Terminal(), 80, monkeypatch)
    assert "…" not in said and "interval" not in said.split("verdict:")[0].split("tok/s:")[0]
    assert any(all(figure in line for figure in figures) for line in said.splitlines())


def printed(show: Callable[[], None], out: io.StringIO, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", out)
        patched.setenv("COLUMNS", str(columns))
        patched.setenv("NO_COLOR", "1")
        show()
    return out.getvalue()
