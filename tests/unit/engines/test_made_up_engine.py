"""A made-up engine: a folder and one entry, and every command knows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import slipstream
from slipstream.engines import FOLDERS, find_folder
from slipstream.engines.ports import free_port
from slipstream.findings import RULES
from slipstream.tasks.export import export
from slipstream.tasks.options import DoctorOptions, EngineChoice, LaunchOptions, ModelOptions, PlanOptions


@pytest.fixture(autouse=True)
def one_entry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(FOLDERS, "made-up", "made_up_engine")
    yield
    RULES.pop("log-made-up", None)  # it registered itself


def test_the_doctor_checks_its_configuration_and_explains_its_log(tmp_path: Path):
    config, log = tmp_path / "serve.sh", tmp_path / "engine.log"
    config.write_text("made-up --model m --guesses 12\n")
    log.write_text("made-up engine: imagining\nimagination exhausted: unicorns\n")
    for engine in ("made-up", "invented"):
        found = slipstream.doctor(DoctorOptions(engine=engine, config=config, log=log)).findings
        assert {"config-range", "log-made-up"} <= {finding.id for finding in found}
        assert next(f for f in found if f.id == "log-made-up").cause == "It can't invent unicorns."


def test_the_doctor_recognises_it_by_its_program(tmp_path: Path):
    config = tmp_path / "start"
    config.write_text("made-up --guesses 12\n")
    assert "config-range" in {f.id for f in slipstream.doctor(DoctorOptions(config=config)).findings}


def test_the_doctor_says_how_far_a_start_came(tmp_path: Path):
    log = tmp_path / "engine.log"
    log.write_text("made-up engine: imagining\n")
    found = slipstream.doctor(DoctorOptions(engine="made-up", log=log)).findings
    assert "imagining" in next(f for f in found if f.id == "log-start-unfinished").cause


def test_memory_is_planned_with_its_overhead():
    made = slipstream.plan(PlanOptions(weights_gb=1, layers=8, kv_heads=8, head_dim=64, gpus="24", engine="made-up"))
    assert made.memory.engine == "Made-up"
    assert next(part.num_bytes for part in made.memory.parts if part.label == "engine") == 123_000_000


def test_it_is_exported():
    text = export("made-up", ModelOptions("m", policy="fixed(4)")).text()
    assert "exec made-up" in text and "--guesses 4" in text


def test_it_is_launched_and_must_draft():
    choice = EngineChoice("made-up", port=free_port())
    with slipstream.launch(choice, ModelOptions("m"), LaunchOptions(smoke=False)) as launched:
        assert launched.running.engine is find_folder("made-up").driver
        answer = launched.running.generator("guess").answer("Count.", slipstream.Sampling(), slipstream.Limits(8))
        assert answer.text == "one two three four" and answer.stats.num_drafted == 3
