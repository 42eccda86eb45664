"""Sizes and places of the models of a manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.errors import UsageError
from slipstream.model_files import local_models
from slipstream.tasks.export import export
from slipstream.tasks.manifest_models import model_source, named_bytes
from slipstream.tasks.options import ExportOptions


@pytest.fixture(autouse=True)
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the hub cache has of every model: nothing, as long as the folder is missing."""
    folder = tmp_path / "snapshot"
    monkeypatch.setattr(local_models, "cached_snapshot", lambda *_: folder if folder.exists() else None)
    return folder


@pytest.mark.parametrize(
    ("name", "gb"),
    [
        ("meta-llama/Llama-3.1-405B-Instruct", 812),  # of the table
        ("org/Llama-3.1-405B-Base", 810),
        ("org/Mixtral-8x22B", 352),
        ("org/Qwen3-235B-A22B", 470),  # all weights, not the active ones
        ("org/SmolLM2-135M", 0.27),
        ("org/x-70B-AWQ", 43.75),
        ("org/x-70B-FP8", 78.75),
        ("org/x-GGUF:x-70B-Q4_K_M.gguf", 43.75),
        ("org/x-8b-4bit", 5),
        ("x-7b.Q8_0.gguf", 7.875),
        ("org/Llama-4-Scout-17B-16E", None),  # 109 B in all, which the name does not say
        ("deepseek-ai/DeepSeek-R1", None),
        ("org/v2b1-large", None),
    ],
)
def test_sizes_of_names(name: str, gb: float | None):
    assert named_bytes(name) == (None if gb is None else pytest.approx(gb * 1e9))


def test_sizes_of_files_and_names_under_models(tmp_path: Path):
    for part in (1, 2):
        (tmp_path / f"m-70B-0000{part}-of-00002.gguf").write_bytes(b"0" * 100)
    split = model_source("llama-server", str(tmp_path / "m-70B-00001-of-00002.gguf"), set())
    assert (split.num_bytes, split.files) == (200, "m-70B-*-of-00002.gguf")
    far = model_source("vllm", "/nowhere/llama-8b", set())  # a path of another machine
    assert (far.path, far.num_bytes, far.repo) == ("/models/llama-8b", 16e9, None)
    assert model_source("vllm", "org/a@main", {"/models/org/a"}).path == "/models/draft-org/a"


def test_models_that_containers_can_t_get():
    with pytest.raises(UsageError, match="Ollama's store"):
        model_source("llama-server", "ollama:tiny", set())
    with pytest.raises(UsageError, match=r"org/name:FILE\.gguf"):
        model_source("llama-server", "org/name", set())
    with pytest.raises(UsageError, match="--weights-gb is -1"):
        export("vllm", "org/x-8B").text(ExportOptions("kubernetes", weights_gb=-1))


def test_sizes_in_the_hub_cache(snapshot: Path):
    snapshot.mkdir()
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
              "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8}  # fmt: skip
    (snapshot / "config.json").write_text(json.dumps(config))
    assert model_source("vllm", "org/unnamed", set()).num_bytes == pytest.approx(16.06e9, rel=0.01)  # 8.03 B weights
    with (snapshot / "model.safetensors").open("wb") as file:
        file.truncate(20 << 30)
    assert model_source("vllm", "org/unnamed", set()).num_bytes == 20 << 30
    assert model_source("vllm", "org/incomplete-70B", set()).num_bytes == 140e9
