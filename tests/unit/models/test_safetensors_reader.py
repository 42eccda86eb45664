from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import save_model, save_tokenizer
from safetensors.torch import load_file, save_file

from slipstream.errors import DamagedModelError, ModelError, ModelNotFoundError, UnsupportedModelError
from slipstream.models import open_checkpoint
from slipstream.models.tensors import expected_tensors


def to_torch(raw: object) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(raw.data))  # type: ignore[attr-defined]
    return tensor.view(torch.bfloat16) if raw.kind == "BF16" else tensor  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("shard_size", ["1GB", "60KB"])
def test_reads_what_transformers_saved(tmp_path: Path, family: str, shard_size: str) -> None:
    model = save_model(tmp_path, family, max_shard_size=shard_size)
    checkpoint = open_checkpoint(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_size == "60KB")
    state = model.state_dict()
    assert set(expected_tensors(checkpoint.config)) == set(state)
    for name, tensor in state.items():
        assert torch.equal(to_torch(checkpoint.tensor(name)), tensor), name
    assert checkpoint.weight_bytes() == sum(t.numel() * 4 for t in state.values())


@pytest.mark.parametrize(("dtype", "kind"), [(torch.bfloat16, "BF16"), (torch.float16, "F16"), (torch.float64, "F32")])
def test_other_float_types(folder: Path, dtype: torch.dtype, kind: str) -> None:
    state = {k: v.to(dtype) for k, v in load_file(folder / "model.safetensors").items()}
    save_file(state, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    raw = checkpoint.tensor("model.norm.weight")
    assert raw.kind == kind
    for name, tensor in state.items():
        assert torch.equal(to_torch(checkpoint.tensor(name)).to(dtype), tensor), name


def test_a_tied_head_needs_no_tensor(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama", tie_word_embeddings=True)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.tied_head and "lm_head.weight" not in expected_tensors(checkpoint.config)


def test_a_safetensors_file_stands_for_its_folder(folder: Path) -> None:
    assert open_checkpoint(folder / "model.safetensors").path == folder


def edit_config(**values: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return edit


def edit_header(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """Rewrites the header of the weights file; the change may return a whole new one."""

    def edit(folder: Path) -> None:
        data = (folder / "model.safetensors").read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        changed = change(header)
        text = json.dumps(header if changed is None else changed).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return edit


def edit_bytes(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


WEIGHTS = "model.safetensors"
NORM = "model.norm.weight"
BROKEN: dict[str, tuple[Callable[[Path], None], type[ModelError], str]] = {
    "empty": (edit_bytes(WEIGHTS, lambda data: b""), DamagedModelError, "empty"),
    "seven bytes": (edit_bytes(WEIGHTS, lambda data: data[:7]), DamagedModelError, "7 bytes"),
    "cut in header": (edit_bytes(WEIGHTS, lambda data: data[:500]), DamagedModelError, "truncated"),
    "cut in data": (edit_bytes(WEIGHTS, lambda data: data[:-100]), DamagedModelError, "truncated"),
    "huge header": (edit_bytes(WEIGHTS, lambda data: b"\xff" * 8 + data[8:]), DamagedModelError, "header"),
    "pointer": (
        edit_bytes(WEIGHTS, lambda d: b"version https://git-lfs.github.com"),
        DamagedModelError,
        "git lfs pull",
    ),
    "broken json": (edit_bytes(WEIGHTS, lambda d: d[:8] + b"#" + d[9:]), DamagedModelError, "JSON"),
    "json list": (edit_header(lambda h: [1]), DamagedModelError, "list"),
    "no description": (edit_header(lambda h: h.update({NORM: 3})), DamagedModelError, NORM),
    "unknown dtype": (edit_header(lambda h: h[NORM].update(dtype="F7")), DamagedModelError, "F7"),
    "dtype is a list": (edit_header(lambda h: h[NORM].update(dtype=[1])), DamagedModelError, NORM),
    "int weights": (edit_header(lambda h: h[NORM].update(dtype="I32")), UnsupportedModelError, "I32"),
    "far offsets": (
        edit_header(lambda h: h[NORM].update(data_offsets=[1 << 40, (1 << 40) + 256])),
        DamagedModelError,
        "truncated",
    ),
    "negative": (edit_header(lambda h: h[NORM].update(data_offsets=[-256, 0])), DamagedModelError, NORM),
    "odd size": (edit_header(lambda h: h[NORM].update(shape=[65])), DamagedModelError, "260"),
    "huge shape": (edit_header(lambda h: h[NORM].update(shape=[1 << 62, 1 << 62])), DamagedModelError, NORM),
    "other shape": (edit_header(lambda h: h[NORM].update(shape=[32, 2])), DamagedModelError, "(32, 2)"),
    "missing tensor": (edit_header(lambda h: h.pop(NORM) and None), DamagedModelError, NORM),
    "extra tensor": (
        edit_header(lambda h: h.update({"model.layers.0.self_attn.o_proj.bias": h[NORM]})),
        UnsupportedModelError,
        "o_proj.bias",
    ),
    "pickle": (pickled, UnsupportedModelError, "Convert"),
    "no weights": (remove(WEIGHTS), ModelNotFoundError, "no safetensors"),
    "no config": (remove("config.json"), ModelNotFoundError, "config.json"),
    "no tokenizer": (remove("tokenizer.json"), ModelNotFoundError, "tokenizer"),
    "broken config": (edit_bytes("config.json", lambda d: d[:50]), DamagedModelError, "JSON"),
    "deep config": (edit_bytes("config.json", lambda d: b"[" * 100_000), DamagedModelError, "JSON"),
    "broken tokenizer": (edit_bytes("tokenizer.json", lambda d: b"{}"), DamagedModelError, "tokenizer"),
    "hqq": (edit_config(quantization_config={"quant_method": "hqq"}), UnsupportedModelError, "hqq"),
    "text for a number": (edit_config(hidden_size="64"), DamagedModelError, "hidden_size"),
    "billions of layers": (edit_config(num_hidden_layers=4_000_000_000), DamagedModelError, "layers"),
    "small vocabulary": (edit_config(vocab_size=100), DamagedModelError, "embed_tokens"),
}


@pytest.mark.parametrize("flaw", BROKEN)
def test_a_broken_folder_gives_one_clear_line(folder: Path, flaw: str) -> None:
    breaking, error, says = BROKEN[flaw]
    breaking(folder)
    with pytest.raises(error) as caught:
        open_checkpoint(folder)
    assert says in str(caught.value) and str(folder) in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    save_model(folder, "Llama", max_shard_size="60KB")
    return folder


def edit_index(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        change(index)
        path.write_text(json.dumps(index))

    return edit


@pytest.mark.parametrize(
    ("breaking", "says"),
    [
        (lambda folder: sorted(folder.glob("model-*"))[0].unlink(), "the weights file .* is missing"),
        (edit_index(lambda i: i["weight_map"].update({NORM: "model-00099-of-00099.safetensors"})), "00099"),
        (edit_index(lambda i: i["weight_map"].update({"nonsense": i["weight_map"][NORM]})), "nonsense"),
        (edit_index(lambda i: i["weight_map"].update({NORM: "../../etc/passwd"})), "file name without a folder"),
        (edit_index(lambda i: i.update(weight_map=3)), "weight_map"),
        (remove("model.safetensors.index.json"), "index.json"),
    ],
)
def test_broken_shards(sharded: Path, tmp_path: Path, breaking: Callable[[Path], None], says: str) -> None:
    folder = Path(shutil.copytree(sharded, tmp_path / "model"))
    breaking(folder)
    with pytest.raises(DamagedModelError, match=says):
        open_checkpoint(folder)


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama", vocab_size=300)
    save_tokenizer(tmp_path)
    with pytest.raises(DamagedModelError, match="300 embedding rows"):
        open_checkpoint(tmp_path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_and_cuts_never_surprise(llama_folder: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "model"
    if not folder.exists():
        shutil.copytree(llama_folder, folder)
    name = data.draw(st.sampled_from([WEIGHTS, WEIGHTS, "config.json", "tokenizer_config.json", "tokenizer.json"]))
    content = bytearray((llama_folder / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content), 2600) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.sampled_from([len(content), len(content) // 2])) :]
    (folder / name).write_bytes(content)
    try:
        checkpoint = open_checkpoint(folder)
        checkpoint.tensor(NORM)
        checkpoint.tokenizer.encode("Hello world 1")
    except ModelError:
        pass
    finally:
        shutil.copy(llama_folder / name, folder / name)
