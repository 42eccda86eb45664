"""A checkpoint written as a Hugging Face folder is the same model, for Slipstream, safetensors and transformers."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import model_files
import numpy as np
import pytest
import safetensors
import torch
import transformers

from slipstream.errors import UnsupportedModelError, UsageError
from slipstream.models import open_checkpoint
from slipstream.models.export import folder as export
from slipstream.models.export.config import config_json
from slipstream.models.export.folder import export_folder
from slipstream.models.export.weights import _round
from slipstream.models.tensors import expected_tensors

ODD_TEXTS = [
    "", " ", "  two  spaces", "tabs\tand\nlines\r\n\n", "12345", "naïve façade", "日本語 🎉 \u200d", "<|im_start|>user",
    "it's IT'S", "a" * 300, "\x00\x7f", "e\u0301 vs é",
]  # fmt: skip


def save_scaled(folder: Path) -> Path:
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model_files.save_model(folder, "Llama", rope_parameters=rope | {"original_max_position_embeddings": 64})
    return folder


def save_family(family: str, **options: object):
    def save(folder: Path) -> Path:
        model_files.save_model(folder, family, **options)
        return folder

    return save


def write_gguf(folder: Path) -> Path:
    model_files.write_gguf(folder / "tiny.gguf")
    return folder / "tiny.gguf"


SOURCES = {
    "gguf": write_gguf,
    "llama, untied": save_family("Llama", tie_word_embeddings=False),
    "llama3 rope": save_scaled,
    "linear rope": save_family("Llama", rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
    "mistral, window": save_family("Mistral", sliding_window=16),
    "qwen2, tied": save_family("Qwen2", tie_word_embeddings=True),
    "qwen2, window": save_family("Qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=0),
    "qwen3": save_family("Qwen3"),
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path):
    (tmp_path / "source").mkdir()
    return open_checkpoint(SOURCES[request.param](tmp_path / "source"))


def test_fp32_keeps_every_weight_and_the_shape(source, tmp_path):
    export_folder(source, tmp_path / "out", "fp32")
    again = open_checkpoint(tmp_path / "out")
    assert replace(again.config, rope_divisors=None) == replace(source.config, rope_divisors=None)
    if source.config.rope_divisors is not None:
        assert again.config.rope_divisors == pytest.approx(source.config.rope_divisors, rel=1e-5)
    for name in expected_tensors(source.config):
        assert np.array_equal(again.tensor(name).data, source.tensor(name).data.astype(np.float32)), name


def test_bf16_is_what_torch_rounds_to(source, tmp_path):
    made = export_folder(source, tmp_path / "out")
    with safetensors.safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:  # the format's own reader
        assert set(file.keys()) == set(expected_tensors(source.config))
        for name in file.keys():  # noqa: SIM118 (it is no dictionary)
            values = torch.from_numpy(source.tensor(name).data.astype(np.float32))
            assert torch.equal(file.get_tensor(name), values.bfloat16()), name
    assert made.num_bytes == open_checkpoint(tmp_path / "out").weight_bytes()


def test_rounding_of_ties_and_what_is_no_number():
    values = np.array([1.0, 1.00390625, 1.01171875, -0.0, 3.4e38, np.inf, -np.inf, np.nan], np.float32)
    rounded = torch.from_numpy(_round(values).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(rounded[:-1], torch.from_numpy(values).bfloat16()[:-1])
    assert torch.isnan(rounded[-1])


def test_transformers_loads_it_and_agrees(source, tmp_path):
    export_folder(source, tmp_path / "out", "fp32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    for name, values in model.state_dict().items():
        if name in source:
            assert np.array_equal(values.numpy(), source.tensor(name).data.astype(np.float32)), name
    assert model.config.eos_token_id is not None


def test_tokenizers_agree_on_odd_texts(source, tmp_path):
    export_folder(source, tmp_path / "out", "fp32")
    again = open_checkpoint(tmp_path / "out").tokenizer
    # By its class: for model type qwen2 AutoTokenizer insists on Qwen's own words, which these tiny models don't have.
    fast = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    for text in ODD_TEXTS:
        ids = source.tokenizer.encode(text, special=True)
        assert again.encode(text, special=True) == ids
        assert fast(text, add_special_tokens=False).input_ids == ids
        assert fast(text).input_ids == [*source.tokenizer.prompt_ids(""), *ids]
        assert fast.decode(ids, skip_special_tokens=True) == source.tokenizer.decode(ids)
    messages = [{"role": "user", "content": "Hello"}]
    assert again.chat_ids(messages) == source.tokenizer.chat_ids(messages)
    chat = fast.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert chat == source.tokenizer.chat_text(messages)
    assert (again.bos_id, again.add_bos, again.eos_ids) == (
        source.tokenizer.bos_id,
        source.tokenizer.add_bos,
        source.tokenizer.eos_ids,
    )


def test_a_place_that_exists_is_left_alone(sound_gguf, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="already exists"):
        export_folder(open_checkpoint(sound_gguf), tmp_path / "out")
    assert [p.name for p in tmp_path.rglob("*")] == ["out", "mine.txt"]


def test_too_little_room_is_known_before_writing(sound_gguf, tmp_path, monkeypatch):
    monkeypatch.setattr(export.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(UsageError, match=r"needs 0\.\d GB, but its disk has 0\.0 GB free"):
        export_folder(open_checkpoint(sound_gguf), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing(sound_gguf, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export, "write_weights", full)
    with pytest.raises(UsageError, match="No space left on device"):
        export_folder(open_checkpoint(sound_gguf), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(sound_gguf, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "write_weights", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_folder(open_checkpoint(sound_gguf), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_a_file(sound_gguf, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't write"):
        export_folder(open_checkpoint(sound_gguf), tmp_path / "file" / "out")


def test_what_config_json_has_no_words_for_is_refused(sound_gguf):
    checkpoint = open_checkpoint(sound_gguf)
    odd_rope = tuple(1.0 + 0.1 * i for i in range(checkpoint.config.head_dim // 2))
    checkpoint.config = replace(checkpoint.config, rope_divisors=odd_rope)
    with pytest.raises(UnsupportedModelError, match=r"config\.json can't describe"):
        config_json(checkpoint, "bfloat16")
    checkpoint.config = replace(checkpoint.config, rope_divisors=None, qkv_bias=True)
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM folder can't represent"):
        config_json(checkpoint, "bfloat16")


def test_the_files_are_readable_by_others(sound_gguf, tmp_path):
    export_folder(open_checkpoint(sound_gguf), tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o555 == 0o555
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"]
    shutil.rmtree(tmp_path / "out")
