"""Ollama: what it can draft with, and what its log says of drafting.

Lines and rules are from its source of 2026-08-21: llm/llama_server.go, server/sched.go. It was not run here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.diagnosis.configs import lint
from slipstream.diagnosis.examine import Case, examine
from slipstream.diagnosis.logs import explain
from slipstream.diagnosis.support_checks import check_models
from slipstream.engines import find_engine, find_folder
from slipstream.engines.client import Client
from slipstream.engines.driver import method_like
from slipstream.engines.engine_types import EngineSettings, Speculation
from slipstream.errors import UsageError
from slipstream.tasks.engine_settings import engine_settings
from slipstream.tasks.options import EngineChoice, ModelOptions
from unit.engines.test_recorded_formats import OLLAMA, serving
from unit.models.model_files import write_gguf

ENGINE = find_engine("ollama")
START = (
    'time=2026-01-01T00:00:00.000Z level=INFO source=llama_server.go:433 msg="starting llama-server" '
    'cmd="/usr/lib/ollama/llama-server --model /m --port 1 -c 4096 -np 1 --log-verbosity 4{}"\n'
)
DRAFTING = START.format(" --spec-type draft-mtp --spec-draft-n-max 4 --spec-draft-backend-sampling")
ACCEPTED = (
    "slot print_timing: id  0 | draft acceptance = 0.62500 (   40 accepted /    64 generated), mean len =  2.50\n"
)
FAILED = "srv load_model: failed to initialize speculative decoding context: draft-simple requires a draft context\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """An ordinary model, one with MTP layers, a DFlash draft, and a store with an ordinary model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    write_gguf(tmp_path / "plain.gguf")
    write_header(tmp_path / "mtp.gguf", "llama", {"llama.nextn_predict_layers": 1})
    write_header(tmp_path / "dflash.gguf", "dflash")
    write_header(tmp_path / "qwen35.gguf", "qwen35", {"qwen35.nextn_predict_layers": 1})
    manifest = tmp_path / "store" / "manifests" / "registry.ollama.ai" / "library" / "stored" / "latest"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'a' * 64}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    (tmp_path / "store" / "blobs").mkdir()
    write_gguf(tmp_path / "store" / "blobs" / f"sha256-{'a' * 64}")
    return tmp_path


def write_header(path: Path, architecture: str, numbers: dict[str, int] | None = None) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (numbers or {}).items():
        writer.add_uint32(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def plan(model: str, method: str = "draft", draft: str | None = None, **values: object):
    return ENGINE.plan(EngineSettings(model, method, draft, **values), Path("/x"))


@pytest.mark.parametrize("draft", ["mtp.gguf", "dflash.gguf", "elsewhere.gguf"])
def test_files_that_it_drafts_with(files, draft):
    assert f"DRAFT {draft}\n" in plan("plain.gguf", draft=draft).files["Modelfile"]


@pytest.mark.parametrize(
    ("model", "path"), [("plain.gguf", "plain.gguf"), ("stored", f"store/blobs/sha256-{'a' * 64}"), ("other", "other")]
)
def test_an_ordinary_draft_is_refused_with_the_command_that_runs_it(files, model, path):
    with pytest.raises(UsageError, match="ordinary model") as caught:
        plan(model, draft="plain.gguf")
    assert "slipstream launch llama-server --model" in str(caught.value)
    assert f"{path} --draft plain.gguf" in str(caught.value)


def test_a_model_without_mtp_layers_is_refused_for_mtp(files):
    with pytest.raises(UsageError, match=r"no MTP layers \(architecture llama\)"):
        plan("plain.gguf", "mtp")
    assert "draft_num_predict" in plan("mtp.gguf", "mtp").files["Modelfile"]
    assert "draft_num_predict" in plan("not-here:8b", "mtp").files["Modelfile"]


@pytest.mark.parametrize("drafter", ["model", None])
def test_a_draft_model_is_no_method_of_it(files, drafter):
    with pytest.raises(UsageError, match="MTP layers") as caught:
        engine_settings(EngineChoice("ollama"), ModelOptions("plain.gguf", "plain.gguf", drafter))
    assert "slipstream launch llama-server" in str(caught.value)
    assert method_like(ENGINE, "draft").name == "draft"


def test_the_doctor_blocks_a_draft_that_launch_refuses(files):
    case = Case(target="plain.gguf", draft="plain.gguf", engine="ollama")
    [finding] = [f for f in examine(case).findings if f.id == "config-draft-kind"]
    assert finding.severity == "blocks" and "launch llama-server --model plain.gguf --draft plain.gguf" in finding.fix
    engine, ids = find_folder("ollama").facts, lambda *pair: [f.id for f in check_models(*pair, engine, ())]
    assert "config-draft-kind" in ids("plain.gguf", "plain.gguf") and "config-draft-kind" in ids(None, "plain.gguf")
    assert "config-draft-kind" not in ids(None, "mtp.gguf") + ids(None, "dflash.gguf") + ids("plain.gguf", None)


def test_architectures_with_one_stream_are_noted(files):
    assert "one request at a time with qwen35 models" in plan("qwen35.gguf", "mtp", streams=4).notes[0]
    assert plan("qwen35.gguf", "mtp").notes == plan("mtp.gguf", "mtp", streams=4).notes == ()


def test_modelfiles(files):
    [finding] = lint("ollama", "FROM ./mtp.gguf\nDRAFT ./plain.gguf\n")
    assert (finding.id, finding.severity) == ("config-draft-kind", "blocks")
    assert "slipstream launch llama-server --model MODEL --draft ./plain.gguf" in finding.fix
    assert lint("ollama", "FROM ./plain.gguf\nDRAFT ./dflash.gguf\n") == []
    [advice] = lint("ollama", "FROM a\nPARAMETER draft_num_predict 4\n")
    assert "small model" not in advice.fix


@pytest.mark.parametrize(
    ("log", "on"),
    [(DRAFTING, True), (START.format(""), False), (DRAFTING + START.format(""), False), (DRAFTING + FAILED, False)],
)
def test_the_log_says_whether_it_drafts(tmp_path, log, on):
    (tmp_path / "engine.log").write_text(log)
    here = Client("http://127.0.0.1:1", log=tmp_path / "engine.log")  # nothing listens: only the log is read
    assert ENGINE.speculation_state(here).on is on


def test_acceptance_is_in_its_log(tmp_path):
    (tmp_path / "engine.log").write_text(DRAFTING + ACCEPTED * 2)
    assert ENGINE.read_speculation(Client("http://127.0.0.1:1", log=tmp_path / "engine.log")) == Speculation(128, 80)
    assert ENGINE.read_speculation(Client("http://127.0.0.1:1")) is None


def test_the_model_is_loaded_to_see_how_it_starts(tmp_path):
    """It starts llama-server with the first request, which may be one without a prompt."""
    log = tmp_path / "engine.log"
    log.write_text("Listening on 127.0.0.1:11434\n")
    with serving(OLLAMA, "/api/generate", lines=True, others={}, log=log) as (client, _):
        client.post_json = lambda path, body, timeout_s=None: log.write_text(DRAFTING)
        state = ENGINE.speculation_state(client)
    assert state.on is True
    assert "--spec-type draft-mtp" in state.evidence


def test_its_log_is_explained():
    mtp = "llama_init_from_model: context type MTP requested but model doesn't contain MTP layers"
    assert [finding.id for finding in explain(mtp, "ollama")] == ["log-no-mtp-layers"]
    waits = 'level=WARN msg="model architecture does not currently support parallel requests" architecture=qwen35'
    [finding] = explain(waits, "ollama")
    assert (finding.id, "qwen35" in finding.cause) == ("log-one-stream", True)
