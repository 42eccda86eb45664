"""Reads files of a model: every way a file can be unreadable becomes one clear error."""

from __future__ import annotations

import json
import mmap
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, TypeVar

from slipstream.errors import DamagedModelError, ModelError, ModelNotFoundError, SlipstreamError
from slipstream.reading import open_regular, read_bytes

LFS_MAGIC = b"version https://git-lfs"
MAX_CONFIG_BYTES = 8 << 20  # the largest tokenizer_config.json in use has about 1 MB
MAX_TOKENIZER_BYTES = 64 << 20  # the largest tokenizer.json in the wild has about 35 MB
MAX_CONFIG_VALUES = 200_000
MAX_VALUES = 8_000_000  # the largest tokenizer.json has 2 million; an index or a header has less


T = TypeVar("T")
_SETTLED_NS = 2_000_000_000  # a file that was written later may change again within the same time stamp


def expand_home(path: Path | str) -> Path:
    """Expands a leading `~` to the home folder; unchanged if there is no such user or home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


@contextmanager
def damage_in(path: Path, part: str = "") -> Iterator[None]:
    """Inside, every error that a damaged file can cause becomes a ModelError that names the file. `part` is what is
    being read: "config", "tensors" or "tokenizer".

    Readers check what they read, but no list of checks is complete, and libraries have errors of their own: the panic
    of a Rust library is not even an Exception.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        named = _named(error, path)
        if isinstance(named, ModelError):
            named.part = named.part or part
        if named is error:
            raise
        raise named from error


def per_file(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """Remembers what was read of the last few files, until they change: a vocabulary takes half a second to read."""

    @lru_cache(maxsize=4)
    def remembered(path: Path, inode: int, size: int, changed_ns: int) -> T:
        return read(path)

    @wraps(read)
    def read_or_remember(path: Path) -> T:
        try:
            status = path.stat()
        except (OSError, ValueError):
            return read(path)
        is_settled = time.time_ns() - status.st_mtime_ns > _SETTLED_NS
        if not stat.S_ISREG(status.st_mode) or not is_settled:
            return read(path)
        return remembered(path, status.st_ino, status.st_size, status.st_mtime_ns)

    return read_or_remember


def map_file(path: Path) -> mmap.mmap:
    """Maps a whole regular file read-only. Raises when it is missing, unreadable, empty or a Git LFS pointer."""
    try:
        with open_regular(path) as file:
            if file.read(1) == b"":
                raise DamagedModelError(f"{path} is empty (0 bytes). Download it again.")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise cannot_read(path, error) from error
    if mapped[: len(LFS_MAGIC)] == LFS_MAGIC:
        mapped.close()
        raise lfs_pointer(path)
    return mapped


def read_file(path: Path, max_bytes: int) -> bytes:
    """A file of a model, whole. Raises when it is unreadable, too large, or an LFS pointer."""
    try:
        data = read_bytes(path, max_bytes)
    except OSError as error:
        raise cannot_read(path, error) from error
    if data.startswith(LFS_MAGIC):
        raise lfs_pointer(path)
    return data


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a large file, such as a tokenizer or an index. Raises when it is unreadable, empty, an LFS
    pointer or not an object.
    """
    return parse_object(read_file(path, MAX_TOKENIZER_BYTES), str(path))


def read_config(path: Path) -> dict[str, Any]:
    """Like read_json, for the small files with settings."""
    return parse_object(read_file(path, MAX_CONFIG_BYTES), str(path), MAX_CONFIG_VALUES)


def read_optional_config(path: Path) -> dict[str, Any]:
    """Like read_config, but a missing file gives an empty object."""
    return read_config(path) if path.exists() else {}


def parse_object(data: bytes, where: str, max_values: int = MAX_VALUES, *, unique: bool = False) -> dict[str, Any]:
    """A JSON object from bytes; `where` names the source in the error. `unique`: a key that an object has twice is an
    error too; JSON would keep the last.

    Values are counted before they are made: three bytes of JSON can become an object of 64.
    """
    num_values = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if num_values > max_values:
        raise DamagedModelError(f"{where} has {num_values:,} values; expected at most {max_values:,}.")
    try:
        value = json.loads(data, object_pairs_hook=_unique_keys if unique else None)
    except (ValueError, RecursionError) as error:
        raise DamagedModelError(
            f"{where} is not valid JSON ({error}). The file is damaged; download it again."
        ) from error
    if not isinstance(value, dict):
        raise DamagedModelError(f"{where} has a JSON {type(value).__name__}; expected an object.")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {counts.most_common(1)[0][0][:200]!r} appears twice")
    return value


def lfs_pointer(path: Path) -> DamagedModelError:
    return DamagedModelError(
        f"{path} is a Git LFS pointer, not the file itself. Run `git lfs pull` in that folder, "
        "or download the file from the hub."
    )


def cannot_read(path: Path, error: OSError) -> ModelNotFoundError:
    return ModelNotFoundError(f"can't read {path}: {error.strerror or error}. Check the path and its permissions.")


def _named(error: BaseException, path: Path) -> SlipstreamError:
    if isinstance(error, SlipstreamError):
        return error
    if isinstance(error, OSError):
        return cannot_read(path, error)
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return DamagedModelError(f"{path} can't be read as a model ({what}). The file is damaged, or of another kind.")
