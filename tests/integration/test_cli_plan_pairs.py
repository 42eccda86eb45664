"""`slipstream plan` and `slipstream pairs` as a user meets them, on models made here."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import tiny_gguf
from commands import refused, run_apart, run_here
from cpu_time import cpu_seconds
from unit.models import model_files

STORY = [
    "plan", "--weights-gb", "22", "--layers", "80", "--kv-heads", "8", "--head-dim", "128",
    "--draft-weights-gb", "0.62", "--draft-like", "TinyLlama-1.1B-Chat-v1.0",
    "--context", "16384", "--kv", "q4", "--gpus", "32,24", "--engine", "tabbyapi",
]  # fmt: skip


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, str]:
    """An environment with empty stores."""
    return {
        "SLIPSTREAM_CACHE": str(tmp_path / "cache"),
        "OLLAMA_MODELS": str(tmp_path / "ollama"),
        "HF_HUB_CACHE": str(tmp_path / "hub"),
    }


@pytest.mark.parametrize("command", ["plan", "pairs"])
def test_help_teaches_by_example(command: str) -> None:
    result = run_here(command, "--help")
    assert result.returncode == 0 and f"slipstream {command}" in result.stdout


# -- plan


def test_the_storys_plan_in_json() -> None:
    result = run_here(*STORY, "--json")
    data = json.loads(result.stdout)
    assert result.returncode == 0 and data["fits"] is True and data["findings"] == []
    assert data["parts"][0] == {
        "label": "target weights", "num_bytes": 22_000_000_000, "why": "as stored", "place": "split", "of_draft": False,
    }  # fmt: skip
    assert data["parts"][1]["num_bytes"] == 1_509_949_440
    assert sum(gpu["num_layers"] for gpu in data["gpus"]) == 80
    assert data["max_context"] >= 16384


def test_the_storys_plan_as_a_picture() -> None:
    result = run_here(*STORY)
    assert result.returncode == 0
    for words in ("target KV", "1.51", "GPU 0", "GPU 1", "█", "▓", "fits", "longest context"):
        assert words in result.stdout


def test_what_does_not_fit_exits_with_1_and_says_what_would() -> None:
    result = run_here("plan", "--weights-gb", "40", "--like", "Llama-3.3-70B-Instruct", "--gpus", "24")
    assert result.returncode == 1
    assert "does NOT fit" in result.stdout and "smaller quantisation" in result.stdout


def test_a_plan_for_files_that_are_here(tmp_path: Path) -> None:
    model_files.save_model(tmp_path / "target", "Llama", num_hidden_layers=4)
    draft = tiny_gguf.write(tmp_path / "draft.gguf", tiny_gguf.vocabulary(300, {}))
    models = ("--target", str(tmp_path / "target"), "--draft", str(draft))
    data = json.loads(run_here("plan", *models, "--context", "8192", "--json").stdout)
    stored = sum(file.stat().st_size for file in (tmp_path / "target").glob("*.safetensors"))
    assert data["target"]["weight_bytes"] == stored and data["target"]["num_layers"] == 4
    assert data["draft"]["name"] == "draft"
    assert data["context"] == 8192 and any("is 128 tokens; the plan has" in note for note in data["notes"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--target", "--weights-gb"]),
        (["--weights-gb", "8", "--kv", "q5"], ["q5", "q4"]),
        (["--weights-gb", "8", "--gpus", "big"], ["--gpus"]),
        (["--weights-gb", "8", "--gpus", "24,-1"], ["--gpus"]),
        (["--weights-gb", "8", "--gpus", "inf"], ["--gpus"]),
        (["--weights-gb", "nan", "--gpus", "24"], ["nan"]),
        (["--weights-gb", "1e400", "--gpus", "24"], ["inf"]),
        (["--weights-gb", "8", "--gpus", "24", "--context", "99999999999"], ["context"]),
        (["--weights-gb", "8", "--gpus", "24", "--engine", "vlm"], ["vllm"]),
        (["--weights-gb", "8", "--target", "x.gguf"], ["--target"]),
        (["--weights-gb", "8", "--like", "gpt-5"], ["gpt-5"]),
    ],
)
def test_bad_use_of_plan_is_one_clear_line(arguments: list[str], words: list[str]) -> None:
    refused(run_here("plan", *arguments), 2, *words)


def test_a_target_that_is_not_there() -> None:
    refused(run_here("plan", "--target", "/nowhere/x.gguf"), 1, "/nowhere/x.gguf")


# -- pairs


def make_pair(folder: Path) -> None:
    """Two models with one vocabulary, one much smaller, and a third that has another."""
    model_files.save_model(folder / "big", "Llama", num_hidden_layers=8, max_position_embeddings=8192)
    model_files.save_model(folder / "small", "Llama", num_hidden_layers=1, max_position_embeddings=8192)
    tiny_gguf.write(folder / "stranger.gguf", tiny_gguf.vocabulary(300, {}))
    (folder / "broken.gguf").write_bytes(b"GGUF\x03")


def test_pairs_without_a_target_lists_the_groups(tmp_path: Path, stores: dict[str, str]) -> None:
    make_pair(tmp_path / "models")
    result = run_here("pairs", "--search", str(tmp_path / "models"), "--json", **stores)
    data = json.loads(result.stdout)
    assert result.returncode == 0
    assert [[Path(m["spec"]).name for m in g["models"]] for g in data["groups"]] == [
        ["big", "small"],
        ["stranger.gguf"],
    ]
    assert [Path(m["spec"]).name for m in data["unreadable"]] == ["broken.gguf"]
    shown = run_here("pairs", "--search", str(tmp_path / "models"), **stores).stdout
    assert "these work together" in shown and "can't be used" in shown


def test_pairs_ranks_drafts_for_a_target(tmp_path: Path, stores: dict[str, str]) -> None:
    make_pair(tmp_path / "models")
    arguments = ["pairs", "--target", str(tmp_path / "models" / "big"), "--search", str(tmp_path / "models")]
    arguments += ["--engine", "vllm"]  # Slipstream would translate the vocabulary of the stranger
    result = run_here(*arguments, "--json", **stores)
    data = json.loads(result.stdout)
    assert result.returncode == 0
    (draft,) = data["drafts"]
    assert Path(draft["spec"]).name == "small"
    assert {"n_draft", "p_min", "speedup", "tokens_per_s"} <= set(draft["prediction"])
    reasons = {Path(m["spec"]).name: m["reason"] for m in data["rejected"]}
    assert "another vocabulary" in reasons["stranger.gguf"] and "can't be read" in reasons["broken.gguf"]
    shown = run_here(*arguments, **stores).stdout
    assert "predicted" in shown and "another vocabulary" in shown and "--drafter translate" in shown
    assert "skipped, of 3 models found:" in shown and "broken.gguf: can't be read" in shown
    beside = json.loads(run_here(*arguments[:3], "--engine", "vllm", "--json", **stores).stdout)
    assert [m["spec"] for m in beside["drafts"]] == [draft["spec"]], "the target's folder needs no --search"


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("llama-cpp-python", "llama-server --model {big} --host 127.0.0.1 --port 8080 --metrics --slots --spec-type"),
        (
            "llama.cpp",
            "llama-server --model {big} --host 127.0.0.1 --port 8080 --metrics --slots --spec-type draft-simple",
        ),
        ("slipstream", "slipstream generate --model {big} --draft {small} Hello"),
    ],
)
def test_pairs_ends_with_the_command_to_run(tmp_path: Path, stores: dict[str, str], engine: str, command: str) -> None:
    big = tiny_gguf.write(tmp_path / "big[1]:cat:.gguf", tiny_gguf.vocabulary(300, {}), layers=40, hidden=64)
    small = tiny_gguf.write(tmp_path / "small.gguf", tiny_gguf.vocabulary(300, {}), layers=1)
    arguments = ["pairs", "--target", str(big), "--search", str(tmp_path), "--engine", engine]
    shown = run_here(*arguments, **stores).stdout
    wanted = command.format(big=shlex.quote(str(big)), small=small)
    assert shown.splitlines()[-1].startswith(wanted)
    assert json.loads(run_here(*arguments, "--json", **stores).stdout)["command"].startswith(wanted)
    assert "big[1]:cat:.gguf" in shown.splitlines()[0], "neither markup nor an emoji"


def test_pairs_recommends_nothing_that_the_engine_can_not_read(tmp_path: Path, stores: dict[str, str]) -> None:
    big = tiny_gguf.write(tmp_path / "big.gguf", tiny_gguf.vocabulary(300, {}), layers=40, hidden=64)
    tiny_gguf.write(tmp_path / "small.gguf", tiny_gguf.vocabulary(300, {}), layers=1)
    result = run_here("pairs", "--target", str(big), "--search", str(tmp_path), "--engine", "vllm", **stores)
    assert "no model here can draft for it" in result.stdout and "weights-quantisation" in result.stdout


def test_pairs_measures_what_it_predicts(tmp_path: Path, stores: dict[str, str]) -> None:
    make_pair(tmp_path / "models")
    kept = {key: value for key, value in stores.items() if key != "SLIPSTREAM_CACHE"}  # the compiled kernels are there
    arguments = ["--target", str(tmp_path / "models" / "big"), "--search", str(tmp_path / "models")]
    result = run_apart("pairs", *arguments, "--measure", "--json", **kept)
    assert result.returncode == 0, result.stderr
    (measured,) = json.loads(result.stdout)["measured"]
    assert Path(measured["spec"]).name == "small"
    assert measured["speedup"] > 0 and measured["predicted_speedup"] > 0 and measured["tokens_per_s"] > 0
    assert measured["verdict"] in ("pays", "does not pay", "no difference", "nothing drafted")


def test_pairs_names_published_models_when_nothing_fits(tmp_path: Path, stores: dict[str, str]) -> None:
    from slipstream.catalogue.families import FAMILIES

    llama3 = next(f for f in FAMILIES if f.name == "Llama 3.x")
    target = tiny_gguf.write(tmp_path / "t.gguf", tiny_gguf.vocabulary(128_256, llama3.samples))
    result = run_here("pairs", "--target", str(target), **stores)
    assert result.returncode == 1
    assert "Llama 3.x" in result.stdout and "no model here can draft for it" in result.stdout
    assert "--search FOLDER" in result.stdout


def test_pairs_is_quick_the_second_time(tmp_path: Path, stores: dict[str, str]) -> None:
    for number in range(4):
        tiny_gguf.write(tmp_path / "m" / f"{number}.gguf", tiny_gguf.vocabulary(128_256, {}, f"v{number}_"))
    run_apart("pairs", "--search", str(tmp_path / "m"), **stores)
    started = cpu_seconds()
    result = run_apart("pairs", "--search", str(tmp_path / "m"), **stores)
    assert result.returncode == 0
    assert cpu_seconds() - started < 6


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--search", "/nowhere/at/all"], 2, ["/nowhere/at/all"]),
        (["--measure"], 2, ["--target"]),
        (["--target", "/nowhere/x.gguf"], 1, ["/nowhere/x.gguf"]),
        (["--target", "org/not-cached"], 1, ["org/not-cached"]),
    ],
)
def test_bad_use_of_pairs_is_one_clear_line(
    stores: dict[str, str], arguments: list[str], code: int, words: list[str]
) -> None:
    refused(run_here("pairs", *arguments, **stores), code, *words)
