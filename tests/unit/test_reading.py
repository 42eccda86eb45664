"""Files that a user names: what is no regular file, or has no end, is refused at once."""

from __future__ import annotations

import contextlib
import os
import socket
import tracemalloc
from pathlib import Path

import pytest

from cpu_time import cpu_seconds
from slipstream.errors import DamagedModelError, ModelNotFoundError
from slipstream.models.files import damage_in, parse_object
from slipstream.reading import (
    BadYamlError,
    open_regular,
    parse_yaml,
    read_bytes,
    read_given_text,
    read_text,
)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "to a pipe").symlink_to(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    server = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(tmp_path):  # a socket's path must be short
        server.bind("socket")
    server.close()
    names = ("pipe", "folder", "loop", "to a pipe", "dangling", "socket", "missing", "a\0b")
    return {name: tmp_path / name for name in names} | {"zero": Path("/dev/zero"), "random": Path("/dev/random")}


KINDS = {
    "pipe": "named pipe",
    "folder": "folder",
    "loop": "symbolic links",
    "to a pipe": "named pipe",
    "dangling": "No such file",
    "socket": "socket",
    "missing": "No such file",
    "a\0b": "valid file name",
    "zero": "device",
    "random": "device",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", KINDS)
def test_only_regular_files_are_opened(places: dict[str, Path], name: str) -> None:
    for read in (open_regular, lambda path: read_bytes(path, 100), lambda path: read_given_text(path, 100)):
        with pytest.raises(OSError, match=KINDS[name]):
            read(places[name])


def test_a_link_to_a_file_is_followed_and_size_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("\ufeff12345678")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_text(tmp_path / "link", 100) == "12345678"
    assert len(read_bytes(tmp_path / "file", 11)) == 11
    with pytest.raises(OSError, match="more than 10 bytes"):
        read_bytes(tmp_path / "file", 10)


def test_a_pipe_that_is_open_already_is_read(tmp_path: Path) -> None:
    """As `--log <(command)` gives it."""
    reading, writing = os.pipe()
    os.write(writing, b"hello")
    os.close(writing)
    try:
        assert read_given_text(Path(f"/dev/fd/{reading}"), 100) == "hello"
    finally:
        os.close(reading)


def test_a_stream_without_end_is_left(tmp_path: Path) -> None:
    file = os.open("/dev/zero", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="more than 3,000,000 bytes"):
            read_given_text(Path(f"/dev/fd/{file}"), 3_000_000)
    finally:
        os.close(file)


LAUGHS = "\n".join(["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)])
MERGES = "\n".join(
    ["a0: &a0 {x: 1, y: 2}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 12)]
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LAUGHS, "aliases"),
        (MERGES, "aliases"),
        ("[" * 100_000, "nested"),
        ("a: " * 1000, "mapping values"),
        ("{a: " * 1000, "nested"),
        ("- " * 100_000, "nested"),
        ("&a [*a]", "inside of what it repeats"),
        ("a: [1", "did not find expected"),
        ("a: *b", "undefined alias"),
        ("a: 2021-99-99", "month"),
        ("? {a: b}\n: x", "unhashable"),
        ("x" * 1_000_000, "characters"),
        ("a: " + "9" * 10_000, "digits"),
        ("a: \x00", "special characters|not allowed|unacceptable|control"),
    ],
)
def test_bad_yaml(text: str, says: str) -> None:
    start = cpu_seconds()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=says):
            parse_yaml(text)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert cpu_seconds() - start < 5


def test_good_yaml_and_where_bad_yaml_is_bad() -> None:
    assert parse_yaml("a: &x [1, 2]\nb: *x\n") == {"a": [1, 2], "b": [1, 2]}
    assert parse_yaml("") is None
    with pytest.raises(BadYamlError) as caught:
        parse_yaml("a: 1\nb: [")
    assert caught.value.line == 3


def test_json_of_many_values_is_not_parsed() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DamagedModelError, match="values"):
            parse_object(b'{"a":[' + b"[]," * 5_000_000 + b"[]]}", "x.json", 1000)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_key_twice() -> None:
    assert parse_object(b'{"a": 1, "a": 2}', "x.json") == {"a": 2}
    with pytest.raises(DamagedModelError, match=r"'a' appears twice"):
        parse_object(b'{"b": {"a": 1, "a": 2}}', "x.json", unique=True)


class PanicException(BaseException):
    """As a Rust library raises it."""


@pytest.mark.parametrize(
    "error", [KeyError("x"), RecursionError(), MemoryError(), PanicException("index"), TypeError()]
)
def test_every_error_of_a_reader_names_the_file(error: BaseException) -> None:
    with (
        pytest.raises(DamagedModelError, match=rf"m\.gguf.*{type(error).__name__}") as caught,
        damage_in(Path("m.gguf"), "tokenizer"),
    ):
        raise error
    assert caught.value.part == "tokenizer"


def test_other_errors_pass() -> None:
    with pytest.raises(ModelNotFoundError, match=r"can't read m\.gguf: gone"), damage_in(Path("m.gguf")):
        raise OSError(2, "gone")
    with pytest.raises(KeyboardInterrupt), damage_in(Path("m.gguf")):
        raise KeyboardInterrupt
