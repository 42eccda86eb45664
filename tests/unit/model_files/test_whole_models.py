"""Models that are not whole: one finding for each problem, and its cause before what follows from it."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.diagnosis.examine import Case, examine
from slipstream.errors import DamagedModelError, ModelError
from slipstream.findings import blocks
from slipstream.model_files import nonfinite
from slipstream.model_files.tensor_probe import load_one_tensor
from slipstream.model_files.weights import check_files, check_weights
from slipstream.models import open_checkpoint
from slipstream.tasks.models_here import fetch
from slipstream.tasks.options import PlanOptions
from slipstream.tasks.plan import plan
from unit.model_files import test_corrupted_files as corrupted
from unit.models import model_files

sound = corrupted.sound


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound / "single", tmp_path / "model"))


@pytest.fixture
def sharded(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound / "sharded", tmp_path / "model"))


# --- values


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_values_that_are_not_finite(folder: Path, dtype: torch.dtype, value: float) -> None:
    tensors = {name: tensor.to(dtype).clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    assert check_weights(folder) == []
    tensors["model.norm.weight"][3] = value
    save_file(tensors, folder / "model.safetensors")
    (finding,) = check_weights(folder)
    assert finding.id == "weights-nonfinite" and "1 of 64 sampled values of 'model.norm.weight'" in finding.evidence


@pytest.mark.parametrize("kind", [None, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0])
def test_gguf_values_that_are_not_finite(tmp_path: Path, kind: gguf.GGMLQuantizationType | None) -> None:
    tensors = model_files.gguf_tensors("llama", np.random.default_rng(0))
    model_files.write_gguf(tmp_path / "m.gguf", tensors=tensors, quantisation=kind)
    assert check_weights(tmp_path / "m.gguf") == []
    tensors["blk.1.ffn_down.weight"][5, :32] = np.nan
    with np.errstate(all="ignore"):
        model_files.write_gguf(tmp_path / "m.gguf", tensors=tensors, quantisation=kind)
    (finding,) = check_weights(tmp_path / "m.gguf")
    assert finding.id == "weights-nonfinite" and "blk.1.ffn_down.weight" in finding.evidence


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (torch.float32, 1e30, "weights-nonfinite"),
        (torch.float64, -1e30, "weights-nonfinite"),
        (torch.bfloat16, -1e30, "weights-nonfinite"),
        (torch.float32, -9944.0, "weights-large"),
        (torch.bfloat16, 9944.0, "weights-large"),
        (torch.float16, -9944.0, "weights-large"),
        (torch.float16, 900.0, ""),
        (torch.bfloat16, -900.0, ""),
    ],
)
def test_values_that_are_far_too_large(folder: Path, dtype: torch.dtype, value: float, expected: str) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.to(dtype).clone() for name, tensor in load_file(file).items()}
    tensors["model.norm.weight"][3] = value
    save_file(tensors, file)
    found = check_weights(folder)
    assert [finding.id for finding in found] == [expected] * bool(expected)
    assert blocks(found) == (expected == "weights-nonfinite")


def test_a_mask_may_be_infinite(tmp_path: Path) -> None:
    save_file({"attn.mask": torch.full((4, 4), -torch.inf)}, tmp_path / "x.safetensors")
    assert check_files(tmp_path / "x.safetensors") == []


def test_a_large_tensor_is_sampled_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonfinite, "SAMPLED_BYTES", 4096)
    for start in (0, 33_300, 66_500, 99_900):
        values = torch.zeros(100_000)
        values[start : start + 100] = torch.nan
        save_file({"t": values}, tmp_path / "x.safetensors")
        assert [f.id for f in check_files(tmp_path / "x.safetensors")] == ["weights-nonfinite"]


# --- keys


def test_a_tensor_described_twice(folder: Path) -> None:
    def twice(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        header = data[8 : 8 + length].rstrip()
        entry = json.dumps(json.loads(header)[corrupted.NORM])
        text = header[:-1] + f', "{corrupted.NORM}": {entry}}}'.encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    corrupted.edit("model.safetensors", twice)(folder)
    (finding,) = check_weights(folder)
    assert finding.id == "weights-damaged" and f"'{corrupted.NORM}' appears twice" in finding.evidence
    with pytest.raises(DamagedModelError, match="appears twice"):
        open_checkpoint(folder)


def test_a_metadata_key_twice(sound: Path, tmp_path: Path) -> None:
    data = (sound / "tiny.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    name, other = b"llama.context_length", b"llama.rope.freq_base"
    assert len(name) == len(other)
    path.write_bytes(data.replace(other, name))
    (finding,) = check_weights(path)
    assert finding.id == "weights-damaged" and "appears twice" in finding.evidence


# --- one finding once


def test_thirty_pointers_are_one_finding(sharded: Path) -> None:
    shards = sorted(sharded.glob("*.safetensors"))
    for shard in shards:
        shard.write_bytes(corrupted.POINTER)
    (finding,) = check_weights(sharded)
    assert finding.id == "weights-pointer" and f"and {len(shards) - 3} more" in finding.evidence


def test_a_missing_shard_is_one_finding(sharded: Path) -> None:
    corrupted.first_shard(sharded).unlink()
    (finding,) = check_weights(sharded)
    assert finding.id == "weights-shards" and "1 of the" in finding.evidence


@pytest.mark.parametrize(
    ("content", "id"),
    [
        (b"", "weights-empty"),
        (corrupted.POINTER, "weights-pointer"),
        (b"<!DOCTYPE html>\n<html><body>Not found</body></html>", "weights-text"),
        (b'{"error": "Repository not found"}', "weights-text"),
        (b"PK\x03\x04" + b"\x14\0\0\x08" * 100, "weights-other-format"),
        (b"\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94\x8c" + b"\0" * 40, "weights-other-format"),
    ],
)
def test_a_file_that_is_something_else(sharded: Path, tmp_path: Path, content: bytes, id: str) -> None:
    corrupted.first_shard(sharded).write_bytes(content)
    assert [finding.id for finding in check_weights(sharded)] == [id]
    assert [finding.id for finding in load_one_tensor(corrupted.first_shard(sharded))] == [id]
    (tmp_path / "m.gguf").write_bytes(content)
    assert [finding.id for finding in check_weights(tmp_path / "m.gguf")] == [id]


def test_the_doctor_says_it_once(sharded: Path, sound: Path) -> None:
    corrupted.first_shard(sharded).write_bytes(corrupted.POINTER)
    for engine in ("slipstream", "vllm"):
        result = examine(Case(target=str(sharded), draft=str(sound / "single"), engine=engine))
        assert [finding.id for finding in result.findings if finding.severity == "blocks"] == ["weights-pointer"]
        assert result.prediction is None


# --- split files


def parts_of(folder: Path, count: int = 3) -> list[Path]:
    paths = [folder / f"m-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    for number, path in enumerate(paths):
        model_files.write_gguf(path, metadata={"split.count": count, "split.no": number})
    return paths


def test_every_part_is_checked(tmp_path: Path) -> None:
    first, second, third = parts_of(tmp_path)
    assert check_weights(first) == [] == check_weights(tmp_path)
    assert [finding.id for finding in check_weights(second)] == ["weights-gguf-parts"]  # not the first
    second.write_bytes(corrupted.POINTER)
    assert [finding.id for finding in check_weights(first)] == ["weights-pointer"]
    second.unlink()
    (finding,) = check_weights(first)
    assert finding.id == "weights-gguf-parts" and "m-00002-of-00003.gguf" in finding.evidence
    third.rename(second)
    assert [finding.id for finding in check_weights(first)] == ["weights-gguf-parts"]
    shutil.copy(second, third)  # part 3 under the name of part 2
    assert [finding.id for finding in check_weights(first)] == ["weights-gguf-parts"]


# --- commands


@pytest.mark.parametrize("flaw", ["shard missing", "shard a pointer", "shard empty"])
def test_what_is_not_whole_fits_nowhere(sharded: Path, flaw: str) -> None:
    options = PlanOptions(target=str(sharded), gpus="24", engine="slipstream")
    assert plan(options).fits
    corrupted.SHARDED[flaw][0](sharded)
    result = plan(options)
    assert not result.fits and result.findings[0].id.startswith("weights-")


def test_pull_of_an_empty_file_fails(tmp_path: Path, sound: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match=r"m\.gguf has 0 bytes"):
        fetch(str(tmp_path / "m.gguf"), print)
    with pytest.raises(ModelError, match="is empty"):
        (tmp_path / "folder").mkdir()
        fetch(str(tmp_path / "folder"), print)
    assert fetch(str(sound / "tiny.gguf"), print) == sound / "tiny.gguf"


def test_a_draft_alone(folder: Path) -> None:
    assert not examine(Case(draft=str(folder))).is_blocked
    (folder / "model.safetensors").write_bytes(corrupted.POINTER)
    result = examine(Case(draft=str(folder)))
    assert [finding.id for finding in result.findings if finding.severity == "blocks"] == ["weights-pointer"]


def test_the_log_of_a_sound_file(folder: Path, tmp_path: Path) -> None:
    """A sound file under a fake-tensor mode gives the message; the doctor tells it from a pickle of that name."""
    from safetensors import safe_open
    from torch._subclasses import FakeTensorMode

    file = folder / "model.safetensors"
    with (
        pytest.raises(
            ValueError, match=r"could not determine the shape of object type 'torch.storage.Untyped"
        ) as error,
        FakeTensorMode(),
        safe_open(file, framework="pt") as opened,
    ):
        opened.get_tensor(corrupted.NORM)
    log = tmp_path / "vllm.log"
    log.write_text(f"INFO starting\nValueError: {error.value}\n")
    case = Case(draft=str(folder), engine="vllm", log=log)
    assert {"log-tensor-read", "weights-sound"} <= {finding.id for finding in examine(case).findings}
    torch.save({"t": torch.zeros(4)}, file)
    with pytest.raises(Exception, match="header too large"), safe_open(file, framework="pt"):
        pass
    ids = [finding.id for finding in examine(case).findings]
    assert "weights-other-format" in ids and "weights-sound" not in ids


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["m.gguf", "m.safetensors", "model"])
def test_places_that_are_no_model(tmp_path: Path, name: str) -> None:
    for target in ("/dev/zero", "/dev/random"):
        (tmp_path / name).symlink_to(target)
        assert corrupted.measured(tmp_path / name)
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert corrupted.measured(tmp_path / name)[0].id == "weights-not-a-file"


def test_a_header_with_too_much_in_it(tmp_path: Path) -> None:
    """Sparse files with headers that fit their size, and would take minutes and gigabytes to read."""
    text = b'{"t":[' + b"[]," * 20_000_000 + b"[]]}"
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert [finding.id for finding in check_files(tmp_path / "m.safetensors")] == ["weights-damaged"]
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 8, 1 << 28)
    (tmp_path / "m.gguf").write_bytes(start)
    os.truncate(tmp_path / "m.gguf", 8 << 30)
    assert [finding.id for finding in corrupted.measured(tmp_path / "m.gguf")] == ["weights-damaged"]
    (tmp_path / "n.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 27, 0))
    os.truncate(tmp_path / "n.gguf", 8 << 30)
    assert [finding.id for finding in corrupted.measured(tmp_path / "n.gguf")] == ["weights-damaged"]
