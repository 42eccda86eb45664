"""`slipstream convert` on the built-in model: the same logits here, and the same text in transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import slipstream
from commands import run_apart, run_here
from contract import tiny_models
from slipstream import Limits, LoadedModel, Sampling
from slipstream.core.protocols import ScoreRequest
from slipstream.core.tree import ROOT
from unit.models import model_files

MESSAGES = [{"role": "user", "content": "Write a Python function that adds two numbers, then explain it."}]
ODD_TEXTS = [
    "",
    "  two  spaces\n\n\tx",
    "12345 ٣٤٥",
    "naïve 日本語 🎉",
    "it's <|im_start|>user\nhi<|im_end|>",
    "e\u0301",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("convert") / "smollm2"
    result = run_apart("convert", "smollm2-135m", str(path), "--dtype", "fp32", "--json")
    assert result.returncode == 0, result.stderr
    written = json.loads(result.stdout)
    assert written["folder"] == str(path) and written["num_tensors"] == 272
    return path


@pytest.mark.real_model
def test_logits_are_the_same_to_the_bit(folder: Path, smollm2_in_floats: LoadedModel) -> None:
    prompt = smollm2_in_floats.tokenizer.chat_ids(MESSAGES)
    assert np.array_equal(_logits(smollm2_in_floats, prompt), _logits(slipstream.load_model(folder), prompt))


def _logits(loaded: LoadedModel, prompt: list[int]) -> np.ndarray:
    sequence = loaded.model.open()
    try:
        return loaded.model.score([ScoreRequest(sequence, prompt)])[0].row(ROOT).copy()
    finally:
        sequence.close()


@pytest.mark.real_model
def test_transformers_writes_the_same_text(folder: Path, smollm2_in_floats: LoadedModel) -> None:
    ours = slipstream.load(smollm2_in_floats, drafter="none").generate(MESSAGES, Sampling(), Limits(24)).result()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == ours.text


@pytest.mark.real_model
def test_tokenizers_agree_on_odd_texts(folder: Path, smollm2: LoadedModel) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ODD_TEXTS:
        ids = smollm2.tokenizer.encode(text, special=True)
        assert tokenizer(text).input_ids == ids
        assert tokenizer.decode(ids) == smollm2.tokenizer.decode(ids, show_special=True) == text


def test_bad_use_is_one_clear_line_and_leaves_nothing(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    tiny = tiny_models.save_folder(tiny_models.make_model("llama2-mha"), tmp_path / "tiny")
    other = tmp_path / "other.gguf"
    model_files.write_gguf(other, architecture="llama", metadata={"general.architecture": "mamba"})
    cases = {
        (str(tiny), str(taken)): "already exists",
        (str(other), str(tmp_path / "out")): "is a 'mamba' model",
        (str(tmp_path / "absent.gguf"), str(tmp_path / "out")): "does not exist",
        (str(tiny), str(tmp_path / "out"), "--dtype", "int8"): "expected bf16, fp32",
        (str(tiny), "/proc/out"): "its disk has 0.0 GB free",
    }
    before = sorted(tmp_path.iterdir())
    for arguments, words in cases.items():
        result = run_here("convert", *arguments)
        assert result.returncode in (1, 2) and result.stdout == ""
        assert words in result.stderr and "Traceback" not in result.stderr, result.stderr
    assert sorted(tmp_path.iterdir()) == before
