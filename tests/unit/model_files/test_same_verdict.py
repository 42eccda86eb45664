"""What the doctor says of a model's files is what loading does with them, in the same words."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.backends.llamacpp.options import LlamaCppOptions
from slipstream.backends.torch.options import TorchOptions
from slipstream.errors import ModelError
from slipstream.findings import Finding
from slipstream.load_checks import check_model
from slipstream.loading import load_model
from unit.model_files import test_corrupted_files as corrupted
from unit.models import model_files

sound = corrupted.sound
TORCH = TorchOptions(device="cpu", context_length=32)
LLAMACPP = LlamaCppOptions(n_gpu_layers=0, context_length=32)


def verdicts(path: Path, options: TorchOptions | LlamaCppOptions) -> tuple[list[Finding], str]:
    """What the check finds, and what loading raises; "" if it loads."""
    found = check_model(path, options.backend)
    try:
        load_model(path, options)
    except ModelError as error:
        return found, str(error)
    return found, ""


def assert_same(path: Path, options: TorchOptions | LlamaCppOptions) -> list[Finding]:
    found, raised = verdicts(path, options)
    assert bool(found) == bool(raised), (found, raised)
    for finding in found:
        assert finding.evidence.rstrip(".") in raised
    return found


def config(**values: object) -> Callable[[Path], object]:
    def rewrite(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return rewrite


CONFIGS = {
    "text for a number": {"hidden_size": "64"},
    "list for a number": {"num_hidden_layers": [2]},
    "true for a number": {"num_attention_heads": True},
    "float for a number": {"vocab_size": 400.5},
    "negative": {"num_key_value_heads": -2},
    "zero": {"num_attention_heads": 0},
    "null": {"hidden_size": None},
    "object": {"intermediate_size": {"a": 1}},
    "a thousand digits": {"vocab_size": 10**1000},
    "text for a flag": {"tie_word_embeddings": "false"},
    "rope as text": {"rope_parameters": "default"},
    "rope with text": {"rope_parameters": {"rope_type": "linear", "factor": "2"}},
    "rope of zero": {"rope_parameters": {"rope_type": "linear", "factor": 0}},
    "rope not finite": {"rope_parameters": {"rope_theta": float("nan")}},
    "context of zero": {"max_position_embeddings": 0},
    "odd head": {"head_dim": 15},
    "heads that do not divide": {"num_attention_heads": 5},
    "architectures as text": {"architectures": "LlamaForCausalLM"},
    "model_type as a list": {"model_type": ["llama"]},
    "activation as a number": {"hidden_act": 3},
    "quantisation as text": {"quantization_config": "awq"},
    "unknown architecture": {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
    "bias": {"attention_bias": True},
    "infinite epsilon": {"rms_norm_eps": float("inf")},
}


@pytest.mark.parametrize("values", CONFIGS.values(), ids=list(CONFIGS))
def test_configs(sound: Path, tmp_path: Path, values: dict[str, object]) -> None:
    folder = Path(shutil.copytree(sound / "single", tmp_path / "model"))
    config(**values)(folder)
    (finding,) = assert_same(folder, TORCH)
    assert finding.id in ("weights-config", "weights-unsupported"), finding
    assert len(finding.evidence) < 500


def tokenizer(change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: change(folder / "tokenizer.json")


TOKENIZERS: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:1000]),
    "pointer": lambda file: file.write_bytes(corrupted.POINTER),
    "a list": lambda file: file.write_text("[]"),
    "deep": lambda file: file.write_text('{"a":' * 100_000),
    "of millions of values": lambda file: file.write_bytes(b'{"a":[' + b"[]," * 10_000_000 + b"[]]}"),
    "other vocabulary": lambda file: file.write_text(file.read_text().replace('"!": 3', '"!": 70000')),
    "vocabulary of text": lambda file: file.write_text(file.read_text().replace('"!": 3', '"!": "3"')),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(sound: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(sound / "single", tmp_path / "model"))
    before = (folder / "tokenizer.json").read_bytes()
    TOKENIZERS[name](folder / "tokenizer.json")
    assert not (folder / "tokenizer.json").is_file() or (folder / "tokenizer.json").read_bytes() != before
    (finding,) = assert_same(folder, TORCH)
    assert finding.id in ("weights-tokenizer", "weights-damaged"), finding


SIDE_FILES = ("tokenizer_config.json", "generation_config.json", "special_tokens_map.json", "chat_template.jinja")


@pytest.mark.parametrize("name", SIDE_FILES)
def test_side_files_that_never_end(sound: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(sound / "single", tmp_path / "model"))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/dev/zero")
    found = assert_same(folder, TORCH)
    assert [finding.id for finding in found] == ([] if name.endswith("jinja") else ["weights-tokenizer"])


@pytest.mark.parametrize("flaw", corrupted.SAFETENSORS)
def test_safetensors(sound: Path, tmp_path: Path, flaw: str) -> None:
    folder = Path(shutil.copytree(sound / "single", tmp_path / "model"))
    corrupted.SAFETENSORS[flaw][0](folder)
    assert assert_same(folder, TORCH)


@pytest.mark.parametrize("flaw", corrupted.SHARDED)
def test_shards(sound: Path, tmp_path: Path, flaw: str) -> None:
    folder = Path(shutil.copytree(sound / "sharded", tmp_path / "model"))
    corrupted.SHARDED[flaw][0](folder)
    assert assert_same(folder, TORCH)


@pytest.mark.parametrize("options", [TORCH, LLAMACPP], ids=["torch", "llamacpp"])
@pytest.mark.parametrize("flaw", corrupted.GGUF)
def test_gguf(sound: Path, tmp_path: Path, flaw: str, options: TorchOptions | LlamaCppOptions) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(corrupted.GGUF[flaw][0]((sound / "tiny.gguf").read_bytes()))
    assert assert_same(path, options)


@pytest.mark.parametrize("options", [TORCH, LLAMACPP], ids=["torch", "llamacpp"])
@pytest.mark.parametrize(
    "metadata",
    [
        {"llama.attention.head_count": 0},
        {"llama.attention.head_count": "4"},
        {"llama.block_count": 1.5},
        {"llama.context_length": None},
        {"llama.expert_count": 4},  # llama.cpp ends the process
        {"llama.rope.scaling.type": 3},
        {"tokenizer.ggml.bos_token_id": 100_000},
    ],
    ids=str,
)
def test_gguf_metadata(tmp_path: Path, metadata: dict, options: TorchOptions | LlamaCppOptions) -> None:
    is_token = any(key.startswith("tokenizer") for key in metadata)
    model_files.write_gguf(tmp_path / "m.gguf", metadata={} if is_token else metadata)
    if is_token:
        data = (tmp_path / "m.gguf").read_bytes()
        (tmp_path / "m.gguf").write_bytes(corrupted.after(b"tokenizer.ggml.bos_token_id", 4, b"\xa0\x86\x01\0")(data))
    assert assert_same(tmp_path / "m.gguf", options)


def test_an_architecture_that_only_llama_cpp_could_know(tmp_path: Path) -> None:
    model_files.write_gguf(tmp_path / "m.gguf", architecture="nonsense")
    (finding,) = assert_same(tmp_path / "m.gguf", LLAMACPP)
    assert finding.id == "weights-unsupported" and "unknown model architecture: 'nonsense'" in finding.evidence
    (finding,) = assert_same(tmp_path / "m.gguf", TORCH)
    assert "'nonsense' model" in finding.evidence


@pytest.mark.parametrize("options", [TORCH, LLAMACPP], ids=["torch", "llamacpp"])
def test_sound_files_pass_both(sound: Path, options: TorchOptions | LlamaCppOptions) -> None:
    assert assert_same(sound / "tiny.gguf", options) == []


def test_sound_folders_pass_both(sound: Path) -> None:
    assert assert_same(sound / "single", TORCH) == [] == assert_same(sound / "sharded", TORCH)
    assert assert_same(sound / "single" / "model.safetensors", TORCH) == []
