"""Command lines and configuration files: written by the engine's table, and sound in the doctor's eyes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from engine_tables import TABLES
from slipstream.diagnosis.configs import lint
from slipstream.engines import find_engine, folders
from slipstream.engines.arguments import CommandLine
from slipstream.engines.driver import check_settings, find_method, method_like
from slipstream.engines.engine_types import EngineSettings, Method
from slipstream.errors import UsageError
from slipstream.parsing.flag_table import Flag, Table
from slipstream.tasks.export import export, own_format
from slipstream.tasks.options import ModelOptions

ENGINES = [folder.driver for folder in folders() if folder.driver and folder.name != "openai"]  # runs already
CHECKED = [folder.driver for folder in folders() if folder.driver and folder.configuration]  # by the doctor
METHODS = [(engine, method) for engine in CHECKED for method in engine.methods if not method.missing]


def settings(method: Method | None = None, **values: object) -> EngineSettings:
    if method:
        values |= {"method": method.name}
        values |= {"draft": "/models/small.gguf"} if method.draft == "required" else {}
        values |= {"draft_length": method.lengths[0]} if method.lengths else {}
        values |= {"p_min": 0.5} if method.takes_p_min else {}
        values |= {"extra": tuple(word for flag in method.needs_arguments for word in (flag, "/given"))}
    return EngineSettings("/models/big.gguf", context=4096, streams=4, program="/opt/engine", **values)


def shown(pair) -> str:
    return f"{pair[0].name}-{pair[1].name}"


@pytest.mark.parametrize("pair", METHODS, ids=shown)
def test_the_doctor_finds_every_method_s_configuration_sound(pair):
    engine, method = pair
    plan = engine.plan(settings(method), Path("/tmp/x"))
    texts = list(plan.files.values()) or [shlex.join((engine.name, *plan.argv[1:]))]
    findings = [finding for text in texts for finding in lint(engine.name, text)]
    assert [f for f in findings if f.severity != "note"] == []
    said = " ".join(plan.argv) + "".join(plan.files.values())
    assert method.draft != "required" or "small.gguf" in said


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_plain_decoding_names_no_drafting(engine):
    plan = engine.plan(settings(), Path("/tmp/x"))
    said = " ".join(plan.argv) + "".join(plan.files.values())
    assert "big.gguf" in said
    assert "spec" not in said
    off = ('draft_model:\n  draft_mode: "disabled"', "--drafter none")  # TabbyAPI's and Slipstream's own
    assert "draft" not in said.lower().replace(off[0], "").replace(off[1], "")


@pytest.mark.parametrize("pair", METHODS, ids=shown)
def test_an_export_says_why_each_value_is_what_it_is(pair):
    engine, method = pair
    plan = engine.plan(settings(method), Path())
    text = own_format(engine, settings(method), plan)
    assert text.count("#") > 3
    assert engine.version in text
    assert [f for f in lint(engine.name, text.replace("/opt/engine", engine.name)) if f.severity != "note"] == []


def test_slipstream_s_own_server_and_one_that_runs_already():
    settings = EngineSettings("big.gguf", "model", "small.gguf", 4, 0.5, streams=2, port=9, secrets={"--api-key": "k"})
    plan = find_engine("slipstream").plan(settings, Path())
    assert plan.argv[-14:] == (
        "--model", "big.gguf", "--draft", "small.gguf", "--drafter", "model(p_min=0.5)", "--policy", "fixed(4)",
        "--host", "127.0.0.1", "--port", "9", "--max-streams", "2",
    )  # fmt: skip
    assert plan.secret_env == {"SLIPSTREAM_API_KEY": "k"}
    with pytest.raises(UsageError, match="--url"):
        find_engine("openai").plan(EngineSettings("m"), Path())


def test_llama_server_s_command_line():
    plan = find_engine("llama-server").plan(
        EngineSettings("big.gguf", "draft-simple", "small.gguf", 4, 0.5, context=2048, streams=2, port=9), Path()
    )
    assert plan.argv == (
        "llama-server", "--model", "big.gguf", "--host", "127.0.0.1", "--port", "9", "--parallel", "2",
        "--ctx-size", "4096", "--metrics", "--slots", "--spec-type", "draft-simple", "--spec-draft-model", "small.gguf",
        "--spec-draft-n-max", "4", "--spec-draft-p-min", "0.5",
    )  # fmt: skip


def test_sglang_checks_one_row_more_than_it_drafts():
    argv = find_engine("sglang").plan(EngineSettings("m", "EAGLE3", "head", 3), Path()).argv
    at = argv.index("--speculative-num-steps")
    assert argv[at : at + 6] == (
        "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
    )  # fmt: skip


def test_tabbyapi_s_file_is_yaml_in_its_sections():
    plan = find_engine("tabbyapi").plan(EngineSettings("/m/big", "model", "/d/small", 4, context=1000), Path("/x"))
    config = yaml.safe_load(plan.files["config.yml"])
    assert config["model"]["model_dir"] == "/m"
    assert config["model"]["cache_size"] == 1024
    assert config["draft_model"] == {
        "draft_mode": "model", "draft_model_dir": "/d", "draft_model_name": "small", "draft_num_tokens": 4,
    }  # fmt: skip
    assert config["network"]["disable_auth"] is True
    assert plan.argv[-2:] == ("--config", "/x/config.yml")


def test_ollama_s_modelfile_and_what_makes_a_model_of_it():
    plan = find_engine("ollama").plan(EngineSettings("big.gguf", "draft", "small.gguf", 4, port=7), Path("/x"))
    assert "FROM big.gguf\n" in plan.files["Modelfile"]
    assert "DRAFT small.gguf\n" in plan.files["Modelfile"]
    assert "PARAMETER draft_num_predict 4\n" in plan.files["Modelfile"]
    assert plan.env["OLLAMA_HOST"] == "127.0.0.1:7"
    assert plan.after == (("ollama", "create", "slipstream", "-f", "/x/Modelfile"),)


def test_a_flag_that_the_table_lacks_is_refused():
    line = CommandLine(TABLES["llama-server"][0])
    with pytest.raises(UsageError, match=r"has no flag --draft-max; use --spec-draft-n-max"):
        line.add("--draft-max", 4)
    with pytest.raises(UsageError, match="has no flag --nonsense"):
        line.add("--nonsense")


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--port", 70000, "0 to 65535"),
        ("--ctx-size", -1, "0 or more"),
        ("--metrics", "yes", "takes no value"),
        ("--port", None, "needs a value"),
        ("--cache-type-k", "q9", "f32"),
    ],
)
def test_a_value_that_the_table_would_not_take_is_refused(flag, value, said):
    with pytest.raises(UsageError, match=said):
        CommandLine(TABLES["llama-server"][0]).add(flag, value)


def test_words_stand_for_numbers():
    line = CommandLine(Table("x", "1", "", (Flag("-n", "int", at_least=0, words=("all",)),)))
    line.add("-n", "all")
    assert line.arguments[0].words == ("-n", "all")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"method": "nonsense"}, "expected none, draft-simple"),
        ({"method": "draft-simple"}, "needs a draft model: add --draft"),
        ({"method": "ngram-simple", "draft": "d.gguf"}, "without a model"),
        ({"method": "ngram-cache", "draft_length": 4}, "no draft length"),
        ({"method": "ngram-simple", "p_min": 0.5}, "no p_min"),
    ],
)
def test_settings_that_contradict_each_other(values, said):
    with pytest.raises(UsageError, match=said):
        check_settings(find_engine("llama-server"), EngineSettings("m", **values))


def test_drafters_of_slipstream_have_their_likes():
    engines = [engine for engine in ENGINES if engine.name != "ollama"]  # it drafts with MTP layers only
    assert {engine.name: method_like(engine, "model(p_min=0.4)").name for engine in engines} == {
        "vllm": "draft_model", "llama-server": "draft-simple", "sglang": "STANDALONE", "tabbyapi": "model",
        "slipstream": "model",
    }  # fmt: skip
    assert method_like(find_engine("llama-server"), "ngram").name == "ngram-simple"
    assert find_method(find_engine("sglang"), "NGRAM").draft == "unused"
    with pytest.raises(UsageError, match="no method for the drafter 'early-exit'"):
        method_like(find_engine("llama-server"), "early-exit")


def test_an_unknown_engine_lists_the_known_ones():
    with pytest.raises(UsageError, match="slipstream, vllm, llama-server, sglang, tabbyapi, ollama, transformers"):
        find_engine("tgi")
    with pytest.raises(UsageError, match="transformers can't be started as an engine; expected slipstream, vllm"):
        find_engine("transformers")


@pytest.mark.parametrize(
    ("alias", "name"),
    [("exllamav2", "tabbyapi"), ("llama.cpp", "llama-server"), ("LlamaCPP", "llama-server"), ("VLLM", "vllm")],
)
def test_one_table_of_names_for_all_commands(alias, name):
    assert find_engine(alias).name == name


def test_an_alias_is_exported_under_the_programs_own_name():
    assert "exec llama-server" in export("llama.cpp", ModelOptions("m.gguf", drafter="none")).text()
