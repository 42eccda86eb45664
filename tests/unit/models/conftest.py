from __future__ import annotations

import io
import shutil
from pathlib import Path

import model_files
import pytest
import sentencepiece

import small_models


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


@pytest.fixture(scope="session")
def spm_model() -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(small_models.CORPUS * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        character_coverage=0.98,
        user_defined_symbols=["[TOOL]"],
        minloglevel=2,
    )
    return model.getvalue()
