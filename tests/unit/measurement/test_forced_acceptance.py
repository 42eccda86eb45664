"""A run whose drafts are accepted by decree writes another text, which is not called a fault."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

import slipstream
from slipstream.core.stream import Limits
from slipstream.errors import UsageError
from slipstream.loading import LoadedModel
from slipstream.measurement.audit import AuditQuestions
from slipstream.measurement.engine_generator import EngineGenerator
from slipstream.measurement.measure import BenchDescription, measure
from slipstream.measurement.regression import compare
from slipstream.measurement.report import render
from slipstream.measurement.results import BenchResult, all_same_text
from slipstream.measurement.runner import BenchSettings
from slipstream.measurement.synthetic import forced_acceptance
from slipstream.measurement.table import print_table
from slipstream.measurement.workload import Prompt
from slipstream.tasks.audit_engine import audit_engine
from slipstream.tasks.engine_comparison import EngineComparison, forces_acceptance
from slipstream.tasks.options import EngineChoice, ModelOptions
from slipstream.tasks.reporter import SILENT

SYNTHETIC = '--speculative-config \'{"method": "ngram", "rejection_sample_method": "synthetic"}\''


@pytest.fixture
def forced(tiny: LoadedModel, prompts: list[Prompt]) -> BenchResult:
    verifier = forced_acceptance(0.5)
    generators = [
        EngineGenerator(label, lambda label=label: slipstream.load(tiny, drafter=label, policy="fixed(2)"), verifier)
        for label in ("none", "ngram")
    ]
    settings = BenchSettings(limits=Limits(24, ignore_eos=True), passes=1)
    described = {"model": "tiny", "temperature": 0.0, "seed": 0}
    return measure(
        tiny.model, generators, prompts[:2], settings,
        BenchDescription(described, "slipstream bench", synthetic=True, forced_acceptance=True), lambda *_: None,
    )  # fmt: skip


def test_a_forced_run_is_not_broken(forced: BenchResult, capsys: pytest.CaptureFixture[str]) -> None:
    drafted = [run for run in forced.runs if run.drafter != "none"]
    assert {run.same_text for run in drafted} == {None}
    assert all("acceptance was forced, so the text can't be compared" in run.verdict.why for run in drafted)
    assert "broken" not in {forced.verdict.word, *(run.verdict.word for run in forced.runs)}
    print_table(forced)
    assert "text identical: not comparable, because acceptance was forced" in capsys.readouterr().out


def test_the_report_and_a_comparison_say_so_too(forced: BenchResult) -> None:
    data: dict[str, Any] = json.loads(json.dumps(asdict(forced)))
    html = render(data)
    assert "not comparable <small>acceptance was forced</small>" in html
    for word in ("Broken", "text differs", "≠ text"):
        assert word not in html
    real = data | {"runs": [run | {"same_text": True} for run in data["runs"]]}
    assert "same_text" not in {change.metric for change in (*compare(real, data), *compare(data, real))}


@pytest.mark.parametrize(
    ("values", "together"),
    [([], True), ([True, True], True), ([True, None], None), ([None, False], False), ([True, False], False)],
)
def test_one_word_for_several_runs(values: list[bool | None], together: bool | None) -> None:
    assert all_same_text(values) is together


def test_an_engine_that_forces_acceptance_is_known_and_not_audited() -> None:
    choice = EngineChoice("vllm", engine_args=SYNTHETIC)
    assert forces_acceptance(choice)
    assert not forces_acceptance(EngineChoice("vllm", engine_args='--speculative-config \'{"method": "ngram"}\''))
    comparison = EngineComparison(choice, ModelOptions("m", drafter="ngram"), [])
    with pytest.raises(UsageError, match="force the acceptance of drafts, so the text can't be compared"):
        audit_engine(comparison, AuditQuestions([], [], Limits(4)), SILENT)
