"""The doctor tries the chat template of the model that answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.diagnosis.examine import Case, examine
from slipstream.findings import Finding
from slipstream.load_checks import check_model
from unit.models import model_files

SOUND = "{% for message in messages %}{{ message.content }}{% endfor %}"
KEY = "tokenizer.chat_template"


def found(folder: Path, template: str | None, **options: bool) -> list[Finding]:
    model_files.write_gguf(folder / "m.gguf", metadata={KEY: template})
    return check_model(folder / "m.gguf", **options)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{{ 'x' * 10**10 }}", "512 MB of memory"),
        ("{% if %}", "Expected an expression"),
        ("{{ raise_exception('only tools') }}", "only tools"),
        ("y" * 5_000_000, "has 5,000,000 characters; at most 1,048,576 are allowed"),
    ],
)
def test_a_template_that_refuses_one_plain_message(tmp_path, template, says):
    [finding] = found(tmp_path, template, answers=True)
    assert (finding.id, finding.severity) == ("weights-chat-template", "blocks")
    assert says in finding.evidence and "--raw" not in finding.evidence and len(finding.evidence) < 600


def test_a_base_model_without_a_template_is_noted(tmp_path):
    [finding] = found(tmp_path, None, answers=True)
    assert (finding.id, finding.severity) == ("weights-chat-template", "note") and "--raw" in finding.fix


def test_a_sound_template_and_that_of_a_draft_are_no_finding(tmp_path):
    assert found(tmp_path, SOUND, answers=True) == []
    assert found(tmp_path, "{% if %}") == []


def test_the_doctor_looks_at_the_target_only(tmp_path):
    model_files.write_gguf(tmp_path / "m.gguf", metadata={KEY: "{% if %}"})
    spec = str(tmp_path / "m.gguf")
    for case, count in ((Case(target=spec), 1), (Case(draft=spec), 0), (Case(target=spec, draft=spec), 1)):
        assert [f.id for f in examine(case).findings].count("weights-chat-template") == count
