"""Damaged and hostile files: each gives a finding, in little time and memory, and nothing is raised."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpu_time import cpu_seconds
from slipstream.findings import Finding, blocks
from slipstream.model_files.model_facts import describe
from slipstream.model_files.weights import check_weights
from unit.models import model_files

Break = Callable[[Path], object]

MAX_S = 6.0
MAX_BYTES = 64 << 20
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NORM = "model.norm.weight"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4242\n"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file, a folder with shards, and a GGUF."""
    root = tmp_path_factory.mktemp("sound")
    model_files.save_model(root / "single", "Llama")
    model_files.save_model(root / "sharded", "Llama", max_shard_size="60KB")
    model_files.write_gguf(root / "tiny.gguf")
    return root


def measured(path: Path) -> list[Finding]:
    """check_weights and describe within the limits of time and memory, each measured without the other."""
    start = cpu_seconds()
    findings = check_weights(path)
    describe(path)
    seconds = cpu_seconds() - start
    tracemalloc.start()
    try:
        check_weights(path)
        describe(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seconds < MAX_S and peak < MAX_BYTES, f"{seconds:.2f} s, {peak:,} bytes"
    return findings


def assert_found(findings: list[Finding], id: str) -> None:
    assert id in {finding.id for finding in findings}, findings
    assert blocks(findings)
    for finding in findings:
        assert len(finding.evidence) < 2000 and finding.cause and finding.fix and "{" not in finding.cause


# --- ways to break safetensors


def edit(name: str, change: Callable[[bytes], bytes]) -> Break:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def cut(share: float) -> Break:
    return edit(WEIGHTS, lambda data: data[: int(len(data) * share)])


def raw_header(text: bytes, body: bytes = b"\0" * 64, length: int | None = None) -> Break:
    stated = len(text) if length is None else length
    return lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", stated) + text + body)


def header(change: Callable[[dict], object]) -> Break:
    """Changes the header; the change may return a whole new one."""

    def rewrite(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        parsed = json.loads(data[8 : 8 + length])
        changed = change(parsed)
        text = json.dumps(parsed if not isinstance(changed, dict | list) else changed).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return edit(WEIGHTS, rewrite)


def tensor(**values: object) -> Break:
    return header(lambda h: h[NORM].update(values))


def shift(h: dict, by: int) -> None:
    h[NORM]["data_offsets"] = [offset + by for offset in h[NORM]["data_offsets"]]


def same_offsets(h: dict) -> None:
    other = next(name for name, t in h.items() if name not in (NORM, "__metadata__") and t["shape"] == h[NORM]["shape"])
    h[NORM]["data_offsets"] = h[other]["data_offsets"]


def one(dtype: str = "F32", shape: object = (4,), offsets: object = (0, 16)) -> dict:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def replaced_by_folder(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()


def replaced_by_pipe(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def dangling(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(folder / "gone")


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def moved_away(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def second_file(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")


DEEP = b"[" * 200_000
NUMBERS = b"9" * 5_000
SAFETENSORS: dict[str, tuple[Break, str]] = {
    "empty": (edit(WEIGHTS, lambda d: b""), "weights-empty"),
    "one byte": (edit(WEIGHTS, lambda d: d[:1]), "weights-truncated"),
    "seven bytes": (edit(WEIGHTS, lambda d: d[:7]), "weights-truncated"),
    "eight bytes": (edit(WEIGHTS, lambda d: d[:8]), "weights-truncated"),
    "cut in the header": (edit(WEIGHTS, lambda d: d[:500]), "weights-truncated"),
    "cut after the header": (
        edit(WEIGHTS, lambda d: d[: 8 + struct.unpack("<Q", d[:8])[0]]),
        "weights-truncated",
    ),
    "cut at a quarter": (cut(0.25), "weights-truncated"),
    "cut at a half": (cut(0.5), "weights-truncated"),
    "cut at 99 %": (cut(0.99), "weights-truncated"),
    "last byte gone": (edit(WEIGHTS, lambda d: d[:-1]), "weights-truncated"),
    "bytes added": (edit(WEIGHTS, lambda d: d + b"\0" * 100), "weights-gap"),
    "all zero": (edit(WEIGHTS, lambda d: bytes(len(d))), "weights-damaged"),
    "all ones": (edit(WEIGHTS, lambda d: b"\xff" * len(d)), "weights-truncated"),
    "text": (edit(WEIGHTS, lambda d: b"<html>404 Not Found</html>" * 10), "weights-text"),
    "pointer": (edit(WEIGHTS, lambda d: POINTER), "weights-pointer"),
    "length 2^64-1": (edit(WEIGHTS, lambda d: b"\xff" * 8 + d[8:]), "weights-truncated"),
    "length 2^63": (edit(WEIGHTS, lambda d: struct.pack("<Q", 1 << 63) + d[8:]), "weights-truncated"),
    "length 90 MB": (edit(WEIGHTS, lambda d: struct.pack("<Q", 90_000_000) + d[8:]), "weights-truncated"),
    "length 0": (edit(WEIGHTS, lambda d: bytes(8) + d[8:]), "weights-damaged"),
    "length 1 less": (
        edit(WEIGHTS, lambda d: struct.pack("<Q", struct.unpack("<Q", d[:8])[0] // 2) + d[8:]),
        "weights-damaged",
    ),
    "flipped first brace": (edit(WEIGHTS, lambda d: d[:8] + bytes([d[8] ^ 0x20]) + d[9:]), "weights-damaged"),
    "NUL in the header": (edit(WEIGHTS, lambda d: d[:20] + b"\0" + d[21:]), "weights-damaged"),
    "bad UTF-8": (edit(WEIGHTS, lambda d: d[:12] + b"\xc3\x28\xff" + d[15:]), "weights-damaged"),
    "deep JSON": (raw_header(DEEP), "weights-damaged"),
    "JSON list": (header(lambda h: [1, 2]), "weights-damaged"),
    "JSON null": (raw_header(b"null"), "weights-damaged"),
    "a byte order mark": (
        raw_header(b'\xef\xbb\xbf{"t": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}'),
        "weights-damaged",
    ),
    "no tensors": (raw_header(b"{}"), "weights-damaged"),
    "only metadata": (raw_header(b'{"__metadata__": {"format": "pt"}}'), "weights-damaged"),
    "number of 5,000 digits": (raw_header(b'{"t": {"dtype": "F32", "shape": [%s]}}' % NUMBERS), "weights-damaged"),
    "tensor is a number": (header(lambda h: h.update({NORM: 3})), "weights-damaged"),
    "tensor is empty": (header(lambda h: h.update({NORM: {}})), "weights-damaged"),
    "unknown dtype": (tensor(dtype="F7"), "weights-damaged"),
    "dtype is a list": (tensor(dtype=["F32"]), "weights-damaged"),
    "dtype is long": (tensor(dtype="F" * 100_000), "weights-damaged"),
    "other dtype": (tensor(dtype="F16"), "weights-damaged"),
    "odd number of 4-bit elements": (header(lambda h: one("F4", [3], [0, 1])), "weights-damaged"),
    "offsets past the end": (tensor(data_offsets=[1 << 40, (1 << 40) + 256]), "weights-truncated"),
    "offsets beyond 2^64": (tensor(data_offsets=[1 << 70, (1 << 70) + 256]), "weights-damaged"),
    "offsets negative": (tensor(data_offsets=[-256, 0]), "weights-damaged"),
    "offsets reversed": (tensor(data_offsets=[256, 0]), "weights-damaged"),
    "offsets are text": (tensor(data_offsets="0:256"), "weights-damaged"),
    "offsets are one": (tensor(data_offsets=[0]), "weights-damaged"),
    "offsets are floats": (tensor(data_offsets=[0.0, 256.0]), "weights-damaged"),
    "offsets are flags": (tensor(data_offsets=[False, True]), "weights-damaged"),
    "shifted by 4": (header(lambda h: shift(h, -4)), "weights-overlap"),
    "two of the same bytes": (header(same_offsets), "weights-overlap"),
    "odd size": (tensor(shape=[65]), "weights-damaged"),
    "huge shape": (tensor(shape=[1 << 62, 1 << 62]), "weights-damaged"),
    "100,000 dimensions": (tensor(shape=[1 << 59] * 100_000), "weights-damaged"),
    "shape negative": (tensor(shape=[-64]), "weights-damaged"),
    "shape is null": (tensor(shape=None), "weights-damaged"),
    "tensor left out": (header(lambda h: h.pop(NORM) and None), "weights-gap"),
    "tensor renamed": (header(lambda h: h.update({"model.norn.weight": h.pop(NORM)})), "weights-incomplete"),
    "50,000 bad tensors": (header(lambda h: {str(i): {"dtype": "X"} for i in range(50_000)}), "weights-damaged"),
    "50,000 tensors of the same bytes": (
        header(lambda h: {str(i): one()["t"] for i in range(50_000)}),
        "weights-overlap",
    ),
    "folder of that name": (replaced_by_folder, "weights-not-a-file"),
    "pipe of that name": (replaced_by_pipe, "weights-not-a-file"),
    "link to nothing": (dangling, "weights-missing"),
    "pickle only": (pickled, "weights-pickle"),
    "no weights": (moved_away, "weights-missing"),
    "two files, no index": (second_file, "weights-no-index"),
    "config missing": (lambda f: (f / "config.json").unlink(), "weights-config"),
    "config cut": (edit("config.json", lambda d: d[:50]), "weights-config"),
    "config empty": (edit("config.json", lambda d: b""), "weights-config"),
    "config of NULs": (edit("config.json", lambda d: bytes(len(d))), "weights-config"),
    "config deep": (edit("config.json", lambda d: DEEP), "weights-config"),
    "config a pointer": (edit("config.json", lambda d: POINTER), "weights-config"),
    "config a list": (edit("config.json", lambda d: b"[]"), "weights-config"),
    "config of another model": (
        edit("config.json", lambda d: d.replace(b'"hidden_size": 64', b'"hidden_size": 128')),
        "weights-incomplete",
    ),
    "config with 4 billion layers": (
        edit("config.json", lambda d: d.replace(b'"num_hidden_layers": 2', b'"num_hidden_layers": 4000000000')),
        "weights-config",
    ),
}


@pytest.mark.parametrize("flaw", SAFETENSORS)
def test_safetensors(sound: Path, tmp_path: Path, flaw: str) -> None:
    folder = Path(shutil.copytree(sound / "single", tmp_path / "model"))
    breaking, id = SAFETENSORS[flaw]
    breaking(folder)
    assert_found(measured(folder), id)


# --- ways to break shards


def first_shard(folder: Path) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[0]


def index(change: Callable[[dict], object]) -> Break:
    def rewrite(data: bytes) -> bytes:
        parsed = json.loads(data)
        change(parsed)
        return json.dumps(parsed).encode()

    return edit(INDEX, rewrite)


def swapped(folder: Path) -> None:
    """Two files of one checkpoint under each other's names."""
    a, b = sorted(folder.glob("model-*.safetensors"))[:2]
    a.rename(folder / "kept")
    b.rename(a)
    (folder / "kept").rename(b)


SHARDED: dict[str, tuple[Break, str]] = {
    "shard missing": (lambda f: first_shard(f).unlink(), "weights-shards"),
    "shard empty": (lambda f: first_shard(f).write_bytes(b""), "weights-empty"),
    "shard a pointer": (lambda f: first_shard(f).write_bytes(POINTER), "weights-pointer"),
    "shard cut": (lambda f: os.truncate(first_shard(f), first_shard(f).stat().st_size // 2), "weights-truncated"),
    "shards swapped": (swapped, "weights-shards"),
    "index missing": (lambda f: (f / INDEX).unlink(), "weights-no-index"),
    "index empty": (edit(INDEX, lambda d: b""), "weights-damaged"),
    "index cut": (edit(INDEX, lambda d: d[:100]), "weights-damaged"),
    "index without map": (index(lambda i: i.pop("weight_map")), "weights-shards"),
    "index with an empty map": (index(lambda i: i.update(weight_map={})), "weights-shards"),
    "index with a number": (index(lambda i: i["weight_map"].update({NORM: 3})), "weights-shards"),
    "index out of the folder": (index(lambda i: i["weight_map"].update({NORM: "../../x"})), "weights-shards"),
    "index with a NUL": (index(lambda i: i["weight_map"].update({NORM: "a\0b"})), "weights-shards"),
    "index of a tensor that is not there": (
        index(lambda i: i["weight_map"].update({"nonsense": i["weight_map"][NORM]})),
        "weights-shards",
    ),
    "index without a tensor": (index(lambda i: i["weight_map"].pop(NORM)), "weights-shards"),
    "index of 20,000 missing files": (
        index(lambda i: i.update(weight_map={str(n): f"{n}.safetensors" for n in range(20_000)})),
        "weights-shards",
    ),
}


@pytest.mark.parametrize("flaw", SHARDED)
def test_shards(sound: Path, tmp_path: Path, flaw: str) -> None:
    folder = Path(shutil.copytree(sound / "sharded", tmp_path / "model"))
    breaking, id = SHARDED[flaw]
    breaking(folder)
    assert_found(measured(folder), id)


# --- ways to break GGUF


def replace_at(position: int, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + new + data[position + len(new) :]


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def after(name: bytes, offset: int, new: bytes) -> Callable[[bytes], bytes]:
    """Overwrites bytes `offset` after the first place of a name."""
    return lambda data: replace_at(data.index(name) + len(name) + offset, new)(data)


EMBED, OUTPUT_NORM, TOKENS = b"token_embd.weight", b"output_norm.weight", b"tokenizer.ggml.tokens"
GGUF: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda d: b"", "weights-empty"),
    "one byte": (lambda d: d[:1], "weights-damaged"),
    "magic only": (lambda d: d[:4], "weights-truncated"),
    "cut in the counts": (lambda d: d[:20], "weights-truncated"),
    "cut in the metadata": (lambda d: d[:200], "weights-damaged"),
    "cut in the vocabulary": (lambda d: d[:3000], "weights-damaged"),
    "cut in the tensor infos": (lambda d: d[: d.index(EMBED) + 30], "weights-truncated"),
    "cut at a half": (lambda d: d[: len(d) // 2], "weights-truncated"),
    "cut at 99 %": (lambda d: d[: len(d) * 99 // 100], "weights-truncated"),
    "other magic": (replace_at(0, b"ggjt"), "weights-damaged"),
    "safetensors in a GGUF's name": (lambda d: u64(2) + b"{}" + d, "weights-other-format"),
    "zip": (lambda d: b"PK\x03\x04" + d[4:], "weights-other-format"),
    "all zero": (lambda d: bytes(len(d)), "weights-damaged"),
    "pointer": (lambda d: POINTER, "weights-pointer"),
    "version 1": (replace_at(4, struct.pack("<I", 1)), "weights-gguf-version"),
    "version 2^31": (replace_at(4, struct.pack("<I", 1 << 31)), "weights-gguf-version"),
    "big-endian": (replace_at(4, struct.pack(">I", 3)), "weights-gguf-version"),
    "2^64-1 tensors": (replace_at(8, b"\xff" * 8), "weights-damaged"),
    "2^40 pairs": (replace_at(16, u64(1 << 40)), "weights-damaged"),
    "no tensors": (replace_at(8, u64(0)), "weights-damaged"),
    "one tensor more": (lambda d: replace_at(8, u64(struct.unpack("<Q", d[8:16])[0] + 1))(d), "weights-damaged"),
    "one pair more": (lambda d: replace_at(16, u64(struct.unpack("<Q", d[16:24])[0] + 1))(d), "weights-damaged"),
    "key of 2^63 bytes": (replace_at(24, u64(1 << 63)), "weights-damaged"),
    "unknown value type": (after(b"general.architecture", 0, struct.pack("<I", 99)), "weights-damaged"),
    "text of 2^62 bytes": (after(b"general.architecture", 4, u64(1 << 62)), "weights-damaged"),
    "2^60 tokens": (after(TOKENS, 8, u64(1 << 60)), "weights-damaged"),
    "array of arrays": (after(TOKENS, 4, struct.pack("<I", 9)), "weights-damaged"),
    "a token of 2^50 bytes": (after(TOKENS, 16, u64(1 << 50)), "weights-damaged"),
    "0 dimensions": (after(EMBED, 0, struct.pack("<I", 0)), "weights-damaged"),
    "4 billion dimensions": (after(EMBED, 0, b"\xff" * 4), "weights-damaged"),
    "shape with a zero": (after(EMBED, 4, u64(0)), "weights-damaged"),
    "shape of 2^62": (after(EMBED, 4, u64(1 << 62)), "weights-truncated"),
    "shape of 2^63 x 2^63": (after(EMBED, 4, u64(1 << 63) * 2), "weights-truncated"),
    "unknown tensor type": (after(EMBED, 20, struct.pack("<I", 77)), "weights-gguf-type"),
    "removed tensor type": (after(EMBED, 20, struct.pack("<I", 31)), "weights-gguf-type"),
    "rows that are no blocks": (
        lambda d: after(EMBED, 20, struct.pack("<I", 12))(after(EMBED, 4, u64(63))(d)),
        "weights-damaged",
    ),
    "offset of 2^63": (after(EMBED, 24, u64(1 << 63)), "weights-truncated"),
    "offset not aligned": (after(OUTPUT_NORM, 16, u64(33)), "weights-damaged"),
    "offset of another": (after(OUTPUT_NORM, 16, u64(0)), "weights-overlap"),
    "tensor renamed": (lambda d: d.replace(OUTPUT_NORM, b"output_nOrm.weight"), "weights-incomplete"),
    "tensor of the same name": (
        lambda d: d.replace(b"blk.1.attn_norm.weight", b"blk.0.attn_norm.weight"),
        "weights-damaged",
    ),
    "layers of another": (
        after(b"llama.block_count", 4, struct.pack("<I", 3)),
        "weights-incomplete",
    ),
}


@pytest.mark.parametrize("flaw", GGUF)
def test_gguf(sound: Path, tmp_path: Path, flaw: str) -> None:
    change, id = GGUF[flaw]
    data = (sound / "tiny.gguf").read_bytes()
    assert change(data) != data
    path = tmp_path / "broken.gguf"
    path.write_bytes(change(data))
    assert_found(measured(path), id)


def test_gguf_places_without_a_file(sound: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    assert_found(check_weights(tmp_path / "folder.gguf"), "weights-not-a-file")
    os.mkfifo(tmp_path / "pipe.gguf")
    assert_found(check_weights(tmp_path / "pipe.gguf"), "weights-not-a-file")
    assert_found(check_weights(tmp_path / "nothing.gguf"), "weights-not-here")
    assert_found(check_weights("org/never-cached"), "weights-not-here")
    assert_found(check_weights("a\0b"), "weights-not-here")


def test_a_split_gguf_lacks_parts(tmp_path: Path) -> None:
    part = tmp_path / "m-00001-of-00003.gguf"
    model_files.write_gguf(part, metadata={"split.count": 3})
    findings = measured(part)
    assert_found(findings, "weights-gguf-parts")
    assert "m-00002-of-00003.gguf" in findings[0].evidence
    assert_found(check_weights(tmp_path), "weights-gguf-parts")
    for number in (2, 3):
        shutil.copy(part, tmp_path / f"m-0000{number}-of-00003.gguf")
    assert check_weights(part) == []
    renamed = shutil.copy(part, tmp_path / "other.gguf")
    assert_found(check_weights(renamed), "weights-gguf-parts")


def test_folders_without_a_model(sound: Path, tmp_path: Path) -> None:
    assert_found(check_weights(tmp_path), "weights-missing")
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(sound / "tiny.gguf", tmp_path / name)
    findings = check_weights(tmp_path)
    assert_found(findings, "weights-missing")
    assert "a.gguf, b.gguf" in findings[0].evidence and "a.gguf" in findings[0].fix


def test_a_large_file_costs_no_memory(tmp_path: Path) -> None:
    """Eight gigabytes of nothing, in a sparse file."""
    text = json.dumps(one("U8", [8 << 30], [0, 8 << 30])).encode()
    path = tmp_path / "large.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + (8 << 30))
    assert measured(path) == []
    os.truncate(path, 8 + len(text) + (7 << 30))
    assert_found(measured(path), "weights-truncated")


def test_the_pickle_fix_is_a_command(sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound / "single", tmp_path / "model"))
    pickled(folder)
    (finding,) = [f for f in check_weights(folder) if f.id == "weights-pickle"]
    assert "save_pretrained" in finding.fix and str(folder) in finding.fix
    (folder / "pytorch_model.bin").write_bytes(POINTER)
    assert {"weights-pickle", "weights-pointer"} <= {f.id for f in check_weights(folder)}


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nothing_is_raised_whatever_the_bytes(sound: Path, tmp_path: Path, data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(["single/model.safetensors", "tiny.gguf"]))
    content = bytearray((sound / source).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, min(len(content), 12_000) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.sampled_from([len(content), len(content) // 2, 5000])) :]
    path = tmp_path / Path(source).name
    path.write_bytes(content)
    start = cpu_seconds()
    findings = check_weights(path)
    describe(path)
    assert cpu_seconds() - start < MAX_S
    assert findings or len(content) == (sound / source).stat().st_size  # a cut is never missed
