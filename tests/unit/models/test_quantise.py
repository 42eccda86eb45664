"""A model written as a quantised GGUF file has the same tokenizer, and weights that differ by the rounding alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from slipstream.errors import UnsupportedModelError, UsageError
from slipstream.models import open_checkpoint
from slipstream.models.gguf.quantise import TYPES, quantise
from slipstream.models.tensors import expected_tensors
from unit.models import model_files

TEXTS = ["It's 12345 o'clock!", "  two  spaces\n\n\tx", "naïve 日本語 🎉", "<|im_start|>user\nhi<|im_end|>"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {family: tmp_path_factory.mktemp(family) for family in ("Llama", "Qwen2", "Qwen3")}
    for family, folder in made.items():
        model_files.save_model(folder, family, tie_word_embeddings=family == "Qwen2")
    return made


@pytest.mark.parametrize(("family", "kind"), [("Llama", "q4_0"), ("Qwen2", "q4_1"), ("Qwen3", "q8_0")])
def test_weights_config_and_tokens_are_those_of_the_folder(
    folders: dict[str, Path], tmp_path: Path, family: str, kind: str
) -> None:
    before = open_checkpoint(folders[family])
    made = quantise(before, tmp_path / "m.gguf", kind)
    after = open_checkpoint(made.path)
    assert made.num_bytes == made.path.stat().st_size and list(tmp_path.iterdir()) == [made.path]
    assert after.config.norm_eps == pytest.approx(before.config.norm_eps)  # GGUF has it in 32 bits
    assert replace(after.config, norm_eps=before.config.norm_eps) == before.config
    for text in TEXTS:
        assert after.tokenizer.encode(text, special=True) == before.tokenizer.encode(text, special=True)
    assert after.tokenizer.eos_ids == before.tokenizer.eos_ids
    assert after.tokenizer.chat_template == before.tokenizer.chat_template
    for name, shape in expected_tensors(before.config).items():
        exact, stored = (np.asarray(c.tensor(name).data, np.float32) for c in (before, after))
        if len(shape) == 1:
            np.testing.assert_array_equal(stored, exact)
            continue
        ggml_type = gguf.GGMLQuantizationType["Q8_0" if "embed" in name or "lm_head" in name else kind.upper()]
        np.testing.assert_array_equal(stored, gguf.quants.dequantize(gguf.quants.quantize(exact, ggml_type), ggml_type))
        assert after.quant_format(name) is not None


def test_a_gguf_files_own_tokenizer_is_copied(folders: dict[str, Path], tmp_path: Path) -> None:
    model_files.write_gguf(tmp_path / "a.gguf", metadata={"tokenizer.ggml.padding_token_id": 3})
    before = gguf.GGUFReader(tmp_path / "a.gguf").fields
    after = gguf.GGUFReader(quantise(open_checkpoint(tmp_path / "a.gguf"), tmp_path / "b.gguf", "q8_0").path).fields
    names = [name for name in before if name.startswith("tokenizer.")]
    assert "tokenizer.ggml.padding_token_id" in names and len(names) > 5
    for name in names:
        assert after[name].types == before[name].types and after[name].contents() == before[name].contents()


def test_llama3_rope_scaling_is_kept(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
    model_files.save_model(tmp_path / "folder", "Llama", rope_parameters=rope)
    before = open_checkpoint(tmp_path / "folder")
    after = open_checkpoint(quantise(before, tmp_path / "m.gguf", "q8_0").path)
    np.testing.assert_allclose(after.config.rope_divisors, before.config.rope_divisors, rtol=1e-6)


def test_what_can_not_be_written_is_refused_and_leaves_nothing(folders: dict[str, Path], tmp_path: Path) -> None:
    checkpoint, there = open_checkpoint(folders["Llama"]), tmp_path / "there.gguf"
    with pytest.raises(UsageError, match=f"expected {', '.join(TYPES)}"):
        quantise(checkpoint, tmp_path / "m.gguf", "q4_k_m")
    there.write_text("mine")
    with pytest.raises(UsageError, match="already exists"):
        quantise(checkpoint, there, "q4_0")
    model_files.save_model(tmp_path / "narrow", "Llama", hidden_size=48)
    with pytest.raises(UnsupportedModelError, match="blocks of 32"):
        quantise(open_checkpoint(tmp_path / "narrow"), tmp_path / "m.gguf", "q4_0")
    assert there.read_text() == "mine" and not (tmp_path / "m.gguf").exists()
