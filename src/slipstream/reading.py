"""Reading files that a user names: regular files only, and no more bytes than such a file can have.

A pipe without a writer blocks whoever opens it, a device has no end, and a few kilobytes of YAML can stand for
gigabytes. Each of them is an OSError or ValueError here, in bounded time and memory.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

MAX_CONFIG_BYTES = 1 << 20  # engines are configured in a few KB, Slipstream's own files are smaller still
MAX_DATA_BYTES = 256 << 20  # prompts and results; the largest sets of prompts in use have 10 MB
MAX_YAML_BYTES = 1 << 18  # takes a second to parse without libyaml
MAX_DEPTH = 64  # of YAML and JSON; the deepest file in use is a tokenizer.json, with 8
MAX_YAML_VALUES = 50_000  # with every alias counted as the values that it stands for

_CHUNK_BYTES = 1 << 20
_KINDS = {
    stat.S_IFDIR: "it is a folder",
    stat.S_IFIFO: "it is a named pipe, not a file",
    stat.S_IFCHR: "it is a device, not a file",
    stat.S_IFBLK: "it is a device, not a file",
    stat.S_IFSOCK: "it is a socket, not a file",
}


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file, following links. Raises OSError for everything else, without waiting for it."""
    _refuse_others(_status(path).st_mode, path)
    return _opened(path)


def open_given(path: Path) -> BinaryIO:
    """Like open_regular, and also what the caller's shell has opened already: standard input, `<(command)`."""
    return _opened(path, os.O_RDONLY) if _is_open_already(path) else open_regular(path)


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file. Raises OSError, also for a file of more bytes."""
    with open_regular(path) as file:
        return _read(file, path, max_bytes)


def read_text(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> str:
    """Like read_bytes, as UTF-8. Raises OSError, UnicodeDecodeError."""
    return read_bytes(path, max_bytes).decode("utf-8-sig")


def read_given(path: Path, max_bytes: int) -> bytes:
    """Like read_bytes, of what open_given opens."""
    with open_given(path) as file:
        return _read(file, path, max_bytes)


def read_given_text(path: Path, max_bytes: int) -> str:
    """A text to look at: standard input and `<(command)` too, and bytes that are not UTF-8 are replaced."""
    return read_given(path, max_bytes).decode("utf-8-sig", errors="replace")


def parse_yaml(text: str) -> Any:
    """The value of a YAML text. Raises ValueError for bad YAML, deep nesting, and aliases that multiply."""
    import yaml

    if len(text) > MAX_YAML_BYTES:
        raise ValueError(f"it has {len(text):,} characters; expected at most {MAX_YAML_BYTES:,}")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_yaml_size(yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)  # a safe loader
    except (yaml.YAMLError, RecursionError, OverflowError, TypeError, AttributeError, KeyError) as error:
        raise BadYamlError(error) from error


class BadYamlError(ValueError):
    """`line` and `column` count from 1; None if the parser does not say where."""

    def __init__(self, error: Exception) -> None:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        self.line: int | None = mark.line + 1 if mark else None
        self.column: int | None = mark.column + 1 if mark else None
        lines = str(getattr(error, "problem", None) or error or type(error).__name__).splitlines()
        super().__init__(lines[0] if lines else type(error).__name__)


def _check_yaml_size(events: Any) -> None:
    """Counts values before any is made. Each anchor is worth the values below it wherever its alias stands."""
    worth: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = []  # anchor, values before it
    total = 0
    for event in events:
        kind, anchor = type(event).__name__, getattr(event, "anchor", None)
        if kind == "AliasEvent":
            if any(name == anchor for name, _ in open_nodes):
                raise ValueError(f"the alias *{anchor} stands inside of what it repeats")
            total += worth.get(anchor, 1)
        elif kind == "ScalarEvent":
            total += 1
            worth[anchor] = 1
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            open_nodes.append((anchor, total))
            total += 1
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            name, before = open_nodes.pop()
            worth[name] = total - before
        if len(open_nodes) > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        if total > MAX_YAML_VALUES:
            raise ValueError(f"it has more than {MAX_YAML_VALUES:,} values, aliases (`*name`) included")


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, "it is not a valid file name", str(path)) from error


def _refuse_others(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, _KINDS.get(stat.S_IFMT(mode), "it is not a regular file"), str(path))


def _opened(path: Path, flags: int = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)) -> BinaryIO:
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        if flags != os.O_RDONLY:
            _refuse_others(os.fstat(descriptor).st_mode, path)  # it may have been replaced meanwhile
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _is_open_already(path: Path) -> bool:
    """A path of one of this process's own descriptors."""
    with suppress(OSError):
        return str(path) == "/dev/stdin" or os.path.realpath(path.parent) == os.path.realpath("/dev/fd")
    return False


def _read(file: BinaryIO, path: Path, max_bytes: int) -> bytes:
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode):
        data = file.read(min(status.st_size, max_bytes) + 1)
    else:  # reading that many bytes at once would also reserve them
        data = b"".join(islice(iter(lambda: file.read(_CHUNK_BYTES), b""), max_bytes // _CHUNK_BYTES + 1))
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", str(path))
    return data
