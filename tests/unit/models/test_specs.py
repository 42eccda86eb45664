from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest

import slipstream.models
from slipstream.errors import DamagedModelError, ModelNotFoundError
from slipstream.models import open_checkpoint, pull, resolve
from slipstream.models.sources.spec import locate
from tiny_gguf import put_in_hub_cache


def test_the_package_exports_three_functions() -> None:
    assert slipstream.models.__all__ == ["open_checkpoint", "pull", "resolve"]


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, slipstream.models; print([m for m in sys.modules if '.' not in m])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("numpy", "gguf", "tokenizers", "huggingface_hub", "jinja2", "torch", "transformers"):
        assert f"'{heavy}'" not in loaded


def test_paths_are_taken_as_they_are(sound_gguf: Path, llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(sound_gguf) == resolve(str(sound_gguf)) == sound_gguf
    assert pull(str(llama_folder), print) == llama_folder
    monkeypatch.chdir(llama_folder)
    assert locate(".").name == llama_folder.name


@pytest.mark.parametrize("spec", ["smolm2-135m", "SmolLM2", "smollm2_135m"])
def test_a_near_miss_names_the_builtin(spec: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"Did you mean smollm2-135m\?"):
        resolve(spec)


@pytest.mark.parametrize("spec", ["", "no such thing", "./nothing", "nothing.gguf", "a/b/c/d", "x" * 5000, "a\0b"])
def test_an_unknown_spec_lists_the_forms(spec: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"ollama:NAME.*ORG/NAME") as caught:
        resolve(spec)
    assert "\n" not in str(caught.value)


# --- Ollama


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound_gguf: Path) -> Path:
    digest = "sha256:" + "ab" * 32
    layers = [{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "00" * 32}]
    layers.append({"mediaType": "application/vnd.ollama.image.model", "digest": digest})
    for name, tag in [("library/tiny", "latest"), ("library/tiny", "q8"), ("someone/other", "latest")]:
        manifest = tmp_path / "manifests" / "registry.ollama.ai" / name / tag
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text(json.dumps({"layers": layers}))
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / digest.replace(":", "-")).write_bytes(sound_gguf.read_bytes())
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("spec", ["ollama:tiny", "ollama:tiny:q8", "ollama:someone/other"])
def test_ollama_models_open(store: Path, spec: str) -> None:
    checkpoint = open_checkpoint(spec)
    assert checkpoint.name == spec.removeprefix("ollama:") and checkpoint.path.parent == store / "blobs"


def test_an_unknown_ollama_name_lists_the_store(store: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="someone/other:latest, tiny:latest, tiny:q8"):
        resolve("ollama:huge")
    with pytest.raises(ModelNotFoundError, match="not a valid Ollama model name"):
        resolve("ollama:../../../etc/passwd")


def test_ollama_manifests_may_be_broken(store: Path) -> None:
    manifest = store / "manifests/registry.ollama.ai/library/tiny/latest"
    manifest.write_text(json.dumps({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "../x"}]}))
    with pytest.raises(DamagedModelError, match="model layer"):
        resolve("ollama:tiny")
    next((store / "blobs").iterdir()).unlink()
    with pytest.raises(ModelNotFoundError, match="Pull the model again"):
        resolve("ollama:tiny:q8")


# --- Hugging Face hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache; the network is cut off."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    real = huggingface_hub.snapshot_download

    def offline(repo: str, *, local_files_only: bool, **options: object) -> str:
        if not local_files_only:
            raise ConnectionError("Name or service not known\nand more lines")
        return real(repo, local_files_only=True, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    return tmp_path


def test_cached_hub_models_open_offline(hub: Path, llama_folder: Path, sound_gguf: Path) -> None:
    put_in_hub_cache(hub, "org/folder-model", list(llama_folder.iterdir()))
    put_in_hub_cache(hub, "org/gguf-model", [sound_gguf])
    assert open_checkpoint("org/folder-model").name == "folder-model"
    assert open_checkpoint("org/folder-model@main").name == "folder-model"
    assert open_checkpoint("org/gguf-model:tiny.gguf").name == "tiny"


@pytest.mark.parametrize("spec", ["org/unknown", "org/half", "org/half:other.gguf", "org/half@v2"])
def test_what_the_cache_lacks_is_one_clear_line_offline(hub: Path, llama_folder: Path, spec: str) -> None:
    put_in_hub_cache(hub, "org/half", [llama_folder / "config.json"])
    with pytest.raises(ModelNotFoundError, match="check the network") as caught:
        resolve(spec)
    assert spec in str(caught.value) and "\n" not in str(caught.value)


def test_only_safe_files_are_downloaded(hub: Path, llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def download(repo: str, *, local_files_only: bool, **options: object) -> str:
        if local_files_only:
            raise FileNotFoundError
        asked.append(options)
        return str(llama_folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    lines: list[str] = []
    assert pull("org/name@v1", lines.append) == llama_folder
    assert lines == ["Downloading org/name@v1 from the Hugging Face hub"]
    assert asked[0]["revision"] == "v1"
    names = ["pytorch_model.bin", "model.pt", "model.safetensors", "config.json", "run.py", "original/a.safetensors"]
    kept = huggingface_hub.utils.filter_repo_objects(
        names, allow_patterns=asked[0]["allow_patterns"], ignore_patterns=asked[0]["ignore_patterns"]
    )
    assert list(kept) == ["model.safetensors", "config.json"]
