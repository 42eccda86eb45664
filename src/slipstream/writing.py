"""Writing files whole: a reader sees the old content or the new one, also when the disk is full or the process dies."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from slipstream.errors import SlipstreamError, UsageError

PRIVATE = 0o600  # only the user can read it
OWNER_WRITES = 0o644  # others can read it, whatever the umask
EXECUTABLE = 0o755


def write_whole(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Writes `content` as the whole of a file, as `opened_whole` does; text is UTF-8. Raises OSError."""
    with opened_whole(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def opened_whole(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """A file beside `path`, renamed to it at the end of the block. A folder that is missing is made. Raises OSError.

    `mode` are the permissions; None keeps those of a file that is there. A link is followed. What is no regular file
    (/dev/stdout, a pipe) can't be replaced and is written to as it is.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode is None and path.exists():
        mode = path.stat().st_mode & 0o777
    scratch = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def write_result(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Writes a file that the user asked for. Raises SlipstreamError that says why it can't be written."""
    with named_errors(path):
        write_whole(path, content, mode)


def refuse_unwritable(path: Path) -> None:
    """Before long work: raises SlipstreamError for a place where `write_result` would fail. Changes nothing."""
    with named_errors(path):
        place = path.resolve()
        if place.is_dir():
            raise UsageError(f"{path} is a folder: name a file to write")
        if place.is_file() or not place.exists():
            folder = next(parent for parent in place.parents if parent.exists())
            try:
                TemporaryFile(dir=folder).close()
            except OSError as error:
                error.filename = str(folder)
                raise


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """An error of the system in the block becomes a SlipstreamError that says why `path` can't be written."""
    try:
        yield
    except OSError as error:
        at = f" ({error.filename})" if error.filename and Path(error.filename) != path else ""
        raise SlipstreamError(f"{path} can't be written: {error.strerror or error}{at}") from error


def commented(lines: Iterable[str]) -> str:
    """Comments of a configuration, one on each line: what follows a line break inside would be no comment."""
    return "".join(f"# {' '.join(line.splitlines())}\n" for line in lines)
