"""Reads files named by a user: every way a file can be unreadable becomes one clear error."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

from slipstream.errors import DamagedModelError, ModelNotFoundError

LFS_MAGIC = b"version https://git-lfs"
MAX_JSON_BYTES = 256 << 20  # the largest tokenizer.json in the wild is about 35 MB


def expand_home(path: Path | str) -> Path:
    """Expands a leading `~` to the home folder; unchanged if there is no such user or home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def map_file(path: Path) -> mmap.mmap:
    """Maps a whole file read-only. Raises when it is missing, unreadable, empty or a Git LFS pointer."""
    try:
        with path.open("rb") as file:
            _refuse_empty(path)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise cannot_read(path, error) from error
    if mapped[: len(LFS_MAGIC)] == LFS_MAGIC:
        mapped.close()
        raise lfs_pointer(path)
    return mapped


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises when it is unreadable, empty, an LFS pointer or not an object."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise DamagedModelError(
                f"{path} has {path.stat().st_size} bytes, which is too large for a JSON file of a model."
            )
        data = path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error
    if data.startswith(LFS_MAGIC):
        raise lfs_pointer(path)
    return parse_object(data, str(path))


def read_optional_json(path: Path) -> dict[str, Any]:
    """Like read_json, but a missing file gives an empty object."""
    return read_json(path) if path.exists() else {}


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object from bytes; `where` names the source in the error."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedModelError(
            f"{where} is not valid JSON ({error}). The file is damaged; download it again."
        ) from error
    if not isinstance(value, dict):
        raise DamagedModelError(f"{where} has a JSON {type(value).__name__}; expected an object.")
    return value


def lfs_pointer(path: Path) -> DamagedModelError:
    return DamagedModelError(
        f"{path} is a Git LFS pointer, not the file itself. Run `git lfs pull` in that folder, "
        "or download the file from the hub."
    )


def cannot_read(path: Path, error: OSError) -> ModelNotFoundError:
    return ModelNotFoundError(f"can't read {path}: {error.strerror or error}. Check the path and its permissions.")


def _refuse_empty(path: Path) -> None:
    if path.stat().st_size == 0:
        raise DamagedModelError(f"{path} is empty (0 bytes). Download it again.")
