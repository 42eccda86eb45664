"""TabbyAPI: its config.yml, and what its log says of drafting.

Lines and keys are from its source of 2026-08-13: backends/exllamav3/model.py, common/gen_logging.py,
common/config_models.py. It was not run here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from slipstream.diagnosis.configs import lint
from slipstream.engines import find_engine
from slipstream.engines.client import Client
from slipstream.engines.engine_types import EngineSettings, Speculation
from slipstream.errors import UsageError
from slipstream.tasks.engine_settings import engine_settings
from slipstream.tasks.options import EngineChoice, ModelOptions

ENGINE = find_engine("tabbyapi")
LOADED = "2026-01-01 00:00:09.000 INFO:     Model successfully loaded.\n"
USING = "2026-01-01 00:00:00.000 INFO:     "
WRAPPED = (  # rich wraps at 80 characters, at words
    "2026-01-01 00:00:00.000 INFO:     Metrics (ID: 1): 10 tokens generated in 0.5 \n"
    "seconds (Queue: 0.0 s, Process: 0 cached tokens and 9 new tokens at 90.0 T/s, \n"
    "Generate: 25.0 T/s, Context: 9 tokens, Draft: 40 / 64 \ntokens accepted (62.50%)) \n"
)


def client(tmp_path: Path, log: str) -> Client:
    (tmp_path / "engine.log").write_text(log)
    return Client("http://127.0.0.1:1", log=tmp_path / "engine.log")  # nothing listens: only the log is read


def config(**values: object) -> dict:
    settings = EngineSettings("/m/big", **values)
    return yaml.safe_load(ENGINE.plan(settings, Path("/x")).files["config.yml"])


@pytest.mark.parametrize(
    ("log", "on"),
    [
        (f"{USING}Using draft model: /models/small\n{LOADED}", True),
        (f"{USING}Using draft\nmodel: /models/small\n{LOADED}", True),
        (f"{USING}Using main model MTP component for drafting\n{LOADED}", True),
        (f"{USING}Using n-gram drafting with minimum match length 2\n{LOADED}", True),
        (WRAPPED, True),
        (LOADED, False),
        (f"Draft model is disabled because a model name wasn't provided.\n{LOADED}", False),
        ("", None),
    ],
)  # fmt: skip
def test_the_log_says_whether_it_drafts(tmp_path, log, on):
    """/v1/model leaves its field `draft` empty for every draft."""
    state = ENGINE.speculation_state(client(tmp_path, log))
    assert state.on is on


def test_without_a_log_nothing_is_claimed():
    elsewhere = Client("http://127.0.0.1:1")
    assert ENGINE.speculation_state(elsewhere).on is None
    assert ENGINE.read_speculation(elsewhere) is None


def test_figures_are_found_in_wrapped_lines(tmp_path):
    assert ENGINE.read_speculation(client(tmp_path, WRAPPED * 2)) == Speculation(128, 80)
    assert ENGINE.plan(EngineSettings("/m/big"), Path()).env["TABBY_LOG_CONSOLE_WIDTH"] == "1000"


def test_plain_decoding_is_written_out():
    """It merges the file with the config.yml in its own folder, which may have a draft."""
    assert config()["draft_model"] == {"draft_mode": "disabled"}


@pytest.mark.parametrize(("method", "draft", "mode"), [("model", "/d/s", "model"), ("mtp", None, "mtp")])
def test_dynamic_draft_lengths(method, draft, mode):
    section = config(method=f"{method}_dynamic", draft=draft, draft_length=8)["draft_model"]
    assert (section["draft_mode"], section["dynamic_draft"], section["draft_num_tokens"]) == (mode, True, 8)
    assert "dynamic_draft" not in config(method=method, draft=draft)["draft_model"]


def test_tensor_parallel_is_a_switch():
    text = ENGINE.plan(EngineSettings("/m/big", tensor_parallel=2), Path()).files["config.yml"]
    assert "  tensor_parallel: true  # splits every layer over all GPUs that it sees" in text
    assert "tensor_parallel" not in config()["model"]
    with pytest.raises(UsageError, match="no use for --pipeline-parallel"):
        config(pipeline_parallel=2)


def test_a_relative_program_runs_in_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    choice = EngineChoice("tabbyapi", program="tabbyAPI/main.py")
    plan = ENGINE.plan(engine_settings(choice, ModelOptions("model", drafter="none")), Path("/x"))
    assert plan.cwd == str(tmp_path / "tabbyAPI")
    assert plan.program == ("python", str(tmp_path / "tabbyAPI" / "main.py"))


def test_stages_of_a_start():
    assert ENGINE.readiness.stage_of("Loading draft modules ━━━━━ 100% 24/24 0:00:00") == "loading the draft"
    assert ENGINE.readiness.stage_of(f"{USING}Loading model: /models/big") == "loading the model"
    assert ENGINE.readiness.stage_of(f"{USING}Developer documentation: http://127.0.0.1:5000/redoc") == "listening"


SOUND = """network:
  sse_ping_interval: 0
model:
  cache_mode: 8,8
  cpu_moe_offload_layers: 999
  template_vars_default: {enable_thinking: true}
  start_in_reasoning: never
  reasoning_budget_tokens: -1
  harmony: false
draft_model:
  draft_model_name: small
  draft_num_tokens: 0
  dynamic_draft: true
memory:
  sysmem_kv_cache: 1024
"""
FAULTY = [
    ("draft_model:\n  draft_model_name: d\n  draft_cache_mode: 8,8\n", "config-choice", "FP16, Q8, Q6, Q4"),
    ("draft_model:\n  draft_model_name: d\n  draft_rope_alpha: auto\n", "config-type", "a number"),
    ("model:\n  backend: exllamav2\n", "config-choice", "exllamav3"),
    ("model:\n  start_in_reasoning: sometimes\n", "config-choice", "auto, always, never"),
    ("model:\n  num_experts_per_token: 2\n", "config-removed", "remove it"),
    ("draft_model:\n  draft_mode: ngram\n  dynamic_draft: true\n", "config-no-effect", "Remove it"),
]


def test_all_keys_of_its_source_pass():
    assert lint("tabbyapi", SOUND) == []


@pytest.mark.parametrize(("text", "rule", "fix"), FAULTY)
def test_what_it_refuses_or_ignores(text, rule, fix):
    [finding] = lint("tabbyapi", text)
    assert finding.id == rule
    assert fix in finding.fix
