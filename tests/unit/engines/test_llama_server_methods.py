"""llama-server: flags that make every kind draft, and settings that its source shows to be without effect.

The rules are from llama.cpp of August 2026: common/ngram-map.cpp, common/speculative.cpp, common/arg.cpp.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.diagnosis.configs import lint
from slipstream.engines import find_engine
from slipstream.engines.driver import check_settings
from slipstream.engines.engine_types import EngineSettings
from slipstream.errors import UsageError
from slipstream.tasks.engine_settings import as_given

ENGINE = find_engine("llama-server")


def flags(model: str = "/m/big.gguf", method: str = "none", draft: str | None = None, **values: object) -> dict:
    plan = ENGINE.plan(EngineSettings(model, method, draft, **values), Path())
    return {argument.flag: argument.value for argument in plan.arguments}


@pytest.mark.parametrize(("length", "size_n"), [(2, "2"), (4, "4"), (12, "12"), (48, "12")])
def test_ngram_simple_drafts_at_every_length(length, size_n):
    """ngram-map.cpp:96: a copy shorter than size-n is dropped, and copies are at most size-m long."""
    written = flags(method="ngram-simple", draft_length=length)
    assert written["--spec-ngram-simple-size-m"] == str(length)
    assert written["--spec-ngram-simple-size-n"] == size_n
    assert "--spec-ngram-simple-size-n" not in flags(method="ngram-simple")


def test_every_part_of_a_combination_has_its_length():
    written = flags(method="draft-mtp,NGRAM-MOD,ngram-simple,ngram-cache", draft_length=6)
    assert written["--spec-type"] == "draft-mtp,ngram-mod,ngram-simple,ngram-cache"
    assert {name: value for name, value in written.items() if "-n-max" in name or "-size-m" in name} == {
        "--spec-draft-n-max": "6", "--spec-ngram-mod-n-max": "6", "--spec-ngram-simple-size-m": "6",
    }  # fmt: skip
    assert flags(method="draft-simple,ngram-mod", draft="/d/small.gguf")["--spec-draft-model"] == "/d/small.gguf"


@pytest.mark.parametrize("name", ["ngram-cache,ngram-mod", "ngram-mod,ngram-cache"])
def test_the_order_of_a_combination_does_not_matter_for_its_length(name):
    assert flags(method=name, draft_length=8)["--spec-ngram-mod-n-max"] == "8"


def test_two_kinds_with_a_model_are_refused():
    with pytest.raises(UsageError, match="one of the methods may draft with a model"):
        check_settings(ENGINE, EngineSettings("m", "draft-simple,draft-eagle3", "d"))


@pytest.mark.parametrize(
    ("model", "written"),
    [
        ("org/x-GGUF", {"--hf-repo": "org/x-GGUF"}),
        ("org/x-GGUF:Q4_K_M", {"--hf-repo": "org/x-GGUF:Q4_K_M"}),
        ("org/x:x-Q8_0.gguf", {"--hf-repo": "org/x", "--hf-file": "x-Q8_0.gguf"}),
        ("folder/x.gguf", {"--model": "folder/x.gguf"}),
        ("/models/x", {"--model": "/models/x"}),
        ("./models/x", {"--model": "./models/x"}),
    ],
)
def test_a_hub_name_is_downloaded_and_a_path_is_not(model, written):
    found = flags(as_given("llama-server", model, fetch=False))
    assert {name: value for name, value in found.items() if name in ("--model", "--hf-repo", "--hf-file")} == written


def test_a_file_here_is_no_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "x").write_bytes(b"GGUF")
    assert flags("org/x")["--model"] == "org/x"


@pytest.mark.parametrize(
    ("draft", "written"),
    [
        ("org/d-GGUF:Q8_0", {"--spec-draft-hf": "org/d-GGUF:Q8_0"}),
        ("org/d:d.gguf", {"--spec-draft-hf": "org/d", "--spec-draft-model": "d.gguf"}),
        ("d.gguf", {"--spec-draft-model": "d.gguf"}),
    ],
)
def test_a_draft_of_the_hub(draft, written):
    found = flags(method="draft-simple", draft=draft)
    assert {name: found[name] for name in ("--spec-draft-hf", "--spec-draft-model") if name in found} == written


def test_a_revision_is_refused():
    with pytest.raises(UsageError, match="remove @main from org/x"):
        flags("org/x@main")


def test_the_context_is_multiplied_only_for_streams_that_divide_it():
    def context(streams: int | None) -> tuple[str | None, str]:
        plan = ENGINE.plan(EngineSettings("m", context=1000, streams=streams), Path())
        return next((a.value, a.why) for a in plan.arguments if a.flag == "--ctx-size")

    assert context(4)[0] == "4000" and "divided among the streams" in context(4)[1]
    assert context(None)[0] == "1000" and "share one cache" in context(None)[1]


LINES = [
    ("--spec-type ngram-simple --spec-ngram-simple-size-m 8", ["config-speculation-off"], "size-n to at most 8"),
    ("--spec-type ngram-simple --spec-ngram-simple-size-n 64", ["config-speculation-off"], "at most 48"),
    ("--spec-type ngram-simple,ngram-mod --spec-ngram-simple-size-m 8", ["config-no-effect"], "at most 8"),
    ("--spec-type ngram-simple --spec-ngram-simple-size-m 8 --spec-ngram-simple-size-n 4", [], ""),
    ("--spec-type ngram-mod --spec-ngram-simple-size-m 8", [], ""),
    ("--spec-type ngram-simple --spec-ngram-simple-min-hits 2", ["config-no-effect"], "Remove it"),
    ("--spec-type ngram-map-k --spec-ngram-map-k-min-hits 2", ["config-no-effect"], "Remove it"),
    ("--spec-type ngram-map-k4v --spec-ngram-map-k4v-min-hits 2", [], ""),
    ("-md b --spec-type draft-simple --draft-p-split 0.2", ["config-no-effect"], "Remove it"),
    ("-md b --spec-type draft-simple,draft-eagle3", ["config-conflict"], "Keep one draft-* kind"),
    ("-md b --spec-type draft-simple --spec-type draft-mtp", ["config-conflict"], "Keep one draft-* kind"),
    ("-md b --spec-type draft-simple,ngram-mod", [], ""),
    ("-md b --spec-default", ["config-no-effect"], "draft-simple"),
    ("--spec-default", [], ""),
    ("--fim-qwen-7b-spec", ["config-speculation-off"], "--spec-type draft-simple"),
    ("--fim-qwen-7b-spec --spec-type draft-simple", [], ""),
]


@pytest.mark.parametrize(("line", "ids", "fix"), LINES)
def test_command_lines(line, ids, fix):
    found = lint("llama-server", f"llama-server -m a {line}")
    assert [finding.id for finding in found] == ids
    assert all(fix in finding.fix for finding in found)


def test_short_drafts_of_ngram_mod_are_no_obstacle():
    """speculative.cpp:1924: with n-max below n-min it keeps drafts of n-max tokens."""
    [finding] = lint("llama-server", "llama-server -m a --spec-type ngram-mod --spec-ngram-mod-n-max 8")
    assert (finding.id, finding.severity) == ("config-order", "slows")
