"""A short run of the fuzz with fixed seeds, and of the stress. `make fuzz` runs for an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.report import Report
from fuzz.stress import Stress, StressSettings
from fuzz.supervisor import WorkerOptions, run_cases
from fuzz.worlds import why_missing

_BACKENDS = [
    pytest.param("fake", 400, id="fake"),
    pytest.param("torch", 80, id="torch"),
    pytest.param("cuda", 60, id="cuda", marks=pytest.mark.gpu),
    pytest.param("llamacpp", 60, id="llamacpp", marks=pytest.mark.llamacpp),
]


@pytest.mark.parametrize(("backend", "num_cases"), _BACKENDS)
def test_every_stream_has_the_text_of_plain_decoding(backend: str, num_cases: int, tmp_path: Path) -> None:
    _skip_if_missing(backend)
    report = Report(backend, first_seed=0)
    for result in run_cases(WorkerOptions(backend, models=tmp_path), first=0, count=num_cases, seconds=240):
        report.add(result)
    assert report.num_cases > num_cases / 2, "the cases took too long"
    assert not report.failures, report.table()


@pytest.mark.parametrize(
    ("backend", "drafter", "num_requests"),
    [("fake", "suffix(width=2)", 150), ("torch", "suffix(width=2)", 30), ("torch", "model", 30)],
)
def test_threads_that_cancel_and_fail_change_no_text_and_leave_nothing(
    backend: str, drafter: str, num_requests: int
) -> None:
    _skip_if_missing(backend)
    result = Stress(StressSettings(backend, num_threads=8, num_requests=num_requests, drafter=drafter)).run()
    assert not result.failures, result.failures[:5]
    assert result.num_requests == 8 * num_requests


def _skip_if_missing(backend: str) -> None:
    if reason := why_missing(backend):
        pytest.skip(reason)
