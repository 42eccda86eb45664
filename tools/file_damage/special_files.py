"""What is not a plain file in the place of one: pipes, devices, sockets, links, folders, names."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _socket(path: Path) -> None:
    """Bound by its short name: a socket's path has at most 107 bytes."""
    here = Path.cwd()
    try:
        os.chdir(path.parent)
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def _loop(path: Path) -> None:
    other = path.with_name(path.name + ".other")
    path.symlink_to(other.name)
    other.symlink_to(path.name)


def _sparse(path: Path, size: int, content: bytes = b"") -> None:
    with path.open("wb") as file:
        file.write(content)
        file.truncate(size)


def _unreadable(path: Path) -> None:
    path.write_bytes(b"x")
    path.chmod(0)


def _folder_of_files(path: Path) -> None:
    path.mkdir()
    for i in range(2000):
        (path / f"model-{i:05}-of-02000.safetensors").touch()


def _linked_to_itself(path: Path) -> None:
    """A folder with a link to itself: a search that follows links never ends."""
    path.mkdir()
    (path / "again").symlink_to(".")
    (path / "config.json").symlink_to("again/config.json")


# Each puts something at a path where nothing is.
SPECIAL: dict[str, Callable[[Path], None]] = {
    "a pipe": lambda path: os.mkfifo(path),
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe"))[1],  # type: ignore[func-returns-value]
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "/dev/urandom": lambda path: path.symlink_to("/dev/urandom"),
    "/dev/null": lambda path: path.symlink_to("/dev/null"),
    "/dev/full": lambda path: path.symlink_to("/dev/full"),
    "/dev/tty": lambda path: path.symlink_to("/dev/tty"),
    "/proc/self/mem": lambda path: path.symlink_to("/proc/self/mem"),
    "/proc/self/environ": lambda path: path.symlink_to("/proc/self/environ"),
    "/proc/self/fd/0": lambda path: path.symlink_to("/proc/self/fd/0"),
    "a socket": _socket,
    "links in a circle": _loop,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing-here"),
    "a link through a file": lambda path: path.symlink_to("/etc/passwd/x"),
    "a link to a folder": lambda path: path.symlink_to("/etc"),
    "a folder": lambda path: path.mkdir(),
    "a folder of 2,000 empty shards": _folder_of_files,
    "a folder with a link to itself": _linked_to_itself,
    "1 TB of zeros": lambda path: _sparse(path, 10**12),
    "4 GB of zeros": lambda path: _sparse(path, 4 * 10**9),
    "a GGUF head, then 1 TB of zeros": lambda path: _sparse(
        path, 10**12, b"GGUF\x03\x00\x00\x00" + b"\xff\xff\x00\x00\x00\x00\x00\x00" * 2
    ),
    "a safetensors head of 90 MB of zeros": lambda path: _sparse(
        path, 10**9, (90_000_000).to_bytes(8, "little") + b"{"
    ),
    "nothing at all": lambda path: None,
    "an empty file": lambda path: path.touch(),
}
if os.geteuid() != 0:  # root reads all files
    SPECIAL["an unreadable file"] = _unreadable

# Names that are allowed in a file system, for sound files.
ODD_NAMES = (
    "with space", "new\nline", "[bold]x[/bold]", "[/x]", ":smile:", "%s{0}", "-dash", "quote'\"", "dollar$HOME",
    "ünïcödé 日本", "a" * 200,
    "tab\there", "\x1b[31mred", "star*", "back\\slash", "\udcff\udcfe", "semi;colon", "x.gguf", "x.safetensors", "~",
    "#", "org:name",
)  # fmt: skip
