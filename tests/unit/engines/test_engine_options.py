"""From the command line and slipstream.yaml to the settings of an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.engines import find_engine
from slipstream.engines.engine_types import PLAIN
from slipstream.errors import ModelNotFoundError, UsageError
from slipstream.tasks.engine_comparison import label_of
from slipstream.tasks.engine_settings import as_given, engine_settings
from slipstream.tasks.export import export
from slipstream.tasks.options import EngineChoice, ModelOptions
from slipstream.tasks.tune_engine import candidates_of


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    """A GGUF file and a folder by name only: nothing of them is read here."""
    (tmp_path / "big.gguf").write_bytes(b"")
    (tmp_path / "small.gguf").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(engine: str, drafter: str | None = None, policy: str | None = None, draft: str | None = None, **choice):
    model = "folder" if engine in ("vllm", "sglang") else "big.gguf"
    return engine_settings(EngineChoice(engine, **choice), ModelOptions(model, draft, drafter, policy))


def test_models_are_named_as_the_engine_finds_them(models):
    assert as_given("llama-server", "big.gguf") == str(models / "big.gguf")
    assert as_given("vllm", "folder") == str(models / "folder")
    assert as_given("vllm", "org/name") == "org/name"  # it asks the hub itself
    assert as_given("ollama", "ollama:qwen3:8b") == "qwen3:8b"
    assert as_given("llama-server", "elsewhere/x.gguf", fetch=False) == "elsewhere/x.gguf"
    with pytest.raises(UsageError, match=r"slipstream convert big\.gguf FOLDER"):
        as_given("vllm", "big.gguf")
    with pytest.raises(UsageError, match=r"slipstream convert org/x:x\.gguf FOLDER"):
        as_given("vllm", "org/x:x.gguf", fetch=False)
    assert as_given("sglang", "big.gguf") == str(models / "big.gguf")  # it reads both
    assert as_given("llama-server", "org/x-GGUF:Q4_K_M") == "org/x-GGUF:Q4_K_M"
    with pytest.raises(UsageError, match="llama-server needs a GGUF file; folder is not one"):
        as_given("llama-server", "folder")
    with pytest.raises(ModelNotFoundError):
        as_given("llama-server", "./nothing.gguf")


def test_a_draft_model_or_n_grams_where_nothing_is_said(models):
    assert settings("llama-server").method == "ngram-simple"
    drafted = settings("llama-server", draft="small.gguf")
    assert (drafted.method, drafted.draft) == ("draft-simple", str(models / "small.gguf"))
    assert settings("llama-server", "none", draft="small.gguf").draft is None


@pytest.mark.parametrize(
    ("engine", "choice", "said"),
    [
        ("llama-server", {"tensor_parallel": 2}, "llama-server has no use for --tensor-parallel: remove it"),
        ("sglang", {"nodes": 2}, "sglang has no use for --nodes: remove it"),
        ("vllm", {"streams": 0}, "--streams is 0; expected 1 or more"),
        ("vllm", {"nodes": 0}, "--nodes is 0; expected 1 or more"),
    ],
)
def test_an_option_without_use_is_an_error(engine, choice, said):
    with pytest.raises(UsageError, match=said):
        export(EngineChoice(engine, **choice), "big.gguf" if engine == "llama-server" else "folder")


def test_a_draft_that_the_method_does_not_use_is_an_error(models):
    with pytest.raises(UsageError, match="llama-server ngram drafts without a model: remove --draft"):
        settings("llama-server", "ngram", draft="small.gguf")


def test_a_relative_program_is_found_from_any_folder(models):
    assert settings("llama-server", program="./bin/llama-server").program == str(models / "bin" / "llama-server")
    assert settings("llama-server", program="llama-server").program == "llama-server"


@pytest.mark.parametrize("engine", ["llama-server", "sglang", "vllm", "tabbyapi", "ollama"])
def test_streams_are_left_to_the_engine(engine):
    model = "big.gguf" if engine in ("llama-server", "ollama") else "folder"
    config = export(engine, ModelOptions(model, drafter="none"))
    text = config.text() + str(dict(config.plan.env))
    limits = ("--parallel", "--max-running-requests", "--max-num-seqs", "max_batch_size", "OLLAMA_NUM_PARALLEL")
    assert not any(limit in text for limit in limits)


def test_an_engine_without_n_grams_decodes_plainly_and_says_so(caplog):
    config = export("ollama", "big.gguf")
    assert config.settings.method == PLAIN and "plain decoding on" in config.text()
    assert "ollama does not have ngram: using plain decoding" in caplog.text and "mtp" in caplog.text
    assert settings("ollama").method == PLAIN  # as launch does
    assert settings("ollama", "mtp").method == "mtp"


def test_drafters_and_policies_in_slipstream_s_words(caplog):
    chosen = settings("llama-server", "model(p_min=0.4)", "fixed(6)", "small.gguf")
    assert (chosen.method, chosen.p_min, chosen.draft_length) == ("draft-simple", 0.4, 6)
    assert settings("llama-server", "suffix(width=3)").method == "ngram-map-k4v"
    assert "they are ignored" in caplog.text
    with pytest.raises(UsageError, match="expected none"):
        settings("llama-server", "ngram-simple(width=3)")
    with pytest.raises(UsageError, match=r"expected auto .* or fixed\(N\)"):
        settings("llama-server", "ngram", "auto(3)")


def test_an_engine_s_own_port_unless_another_is_asked_for():
    assert settings("vllm").port == 8000
    assert settings("vllm", port=9000).port == 9000
    assert settings("llama-server", engine_args="--threads 4 --flash-attn on").extra == (
        "--threads", "4", "--flash-attn", "on",
    )  # fmt: skip


def test_a_quote_that_is_not_closed_is_refused_without_repeating_keys():
    with pytest.raises(UsageError, match=r"--engine-args can't be read .*: No closing quotation") as refused:
        settings("vllm", engine_args="--api-key 'secret")
    assert "secret" not in str(refused.value)


def test_what_was_tuned_for_one_engine_is_left_alone_by_the_others(models):
    (models / "slipstream.yaml").write_text(
        "model: big.gguf\ndraft: small.gguf\ndrafter: draft-simple(p_min=0.5)\npolicy: fixed(4)\nengine: llama-server\n"
    )
    own = ModelOptions().resolved("llama-server")
    assert own == ModelOptions("big.gguf", "small.gguf", "draft-simple(p_min=0.5)", "fixed(4)")
    assert ModelOptions().resolved("vllm") == ModelOptions().resolved() == ModelOptions("big.gguf")
    assert ModelOptions("other.gguf").resolved("llama-server") == ModelOptions("other.gguf")


def test_what_slipstream_tuned_for_itself_is_exported(models):
    (models / "slipstream.yaml").write_text("model: big.gguf\ndrafter: suffix\npolicy: fixed(8)\n")
    chosen = engine_settings(EngineChoice("llama-server"), ModelOptions().resolved("llama-server"))
    assert (chosen.method, chosen.draft_length) == ("ngram-map-k4v", 8)


def test_candidates_to_tune_are_those_that_the_models_allow():
    engine = find_engine("llama-server")
    free = {candidate.drafter for candidate in candidates_of(engine, [], [])}
    assert free == {"ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"}
    drafted = candidates_of(engine, ["small.gguf"], ["draft-simple"])
    assert {c.drafter for c in drafted} == {"draft-simple", "draft-simple(p_min=0.5)"}
    assert all(c.draft == "small.gguf" and c.length for c in drafted)
    with pytest.raises(UsageError, match="--draft"):
        candidates_of(engine, [], ["model"])


def test_slipstreams_own_server_chooses_how_to_draft_unless_told() -> None:
    engine = find_engine("slipstream")
    assert settings("slipstream").method == "own"
    assert "--drafter own" in " ".join(engine.plan(settings("slipstream"), Path()).argv)
    assert as_given("slipstream", "smollm2-135m") == "smollm2-135m"  # a file of it would have no head
    assert "suffix(width=3)" in engine.plan(settings("slipstream", "suffix(width=3)"), Path()).argv
    assert label_of(settings("slipstream", "suffix(width=3)")) == "suffix(width=3)"
    tried = [(one.drafter, one.policy) for one in candidates_of(engine, [], ["own"])]
    assert tried == [("own", "auto"), ("own", "fixed(4)")]
    assert "--drafter suffix" in " ".join(engine.plan(settings("slipstream", "suffix"), Path()).argv)
