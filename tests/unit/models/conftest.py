from __future__ import annotations

import shutil
from pathlib import Path

import model_files
import pytest


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    model_files.save_model(folder, "Llama")
    return folder


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A copy of a sound folder, for a test to break."""
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))


@pytest.fixture(scope="session")
def sound_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    model_files.write_gguf(path)
    return path
