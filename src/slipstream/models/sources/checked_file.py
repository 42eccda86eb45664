"""Checks large files with a known SHA-256: hashes them once after each change, not at every start."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path

from slipstream.cache import read_private
from slipstream.writing import OWNER_WRITES, write_whole

_CLOCK_TICK_S = 0.05  # longer than the resolution of modification times


def has_sha256(path: Path, sha256: str, num_bytes: int) -> bool:
    """Whether a file is there and has this hash.

    The hash is recorded next to the file with size, modification time and inode. If the record can't be written, the
    file is hashed every time.
    """
    try:
        facts = _facts(path)
        if facts["size"] != num_bytes:
            return False
        record = record_of(path)
        if read_private(record) == (line := json.dumps(facts | {"sha256": sha256}).encode()):
            return True
        _wait_for_the_clock(facts["mtime_ns"])
        if _sha256(path) != sha256 or _facts(path) != facts:
            return False
    except OSError:
        return False
    with suppress(OSError):
        write_whole(record, line, OWNER_WRITES)
    return True


def record_of(path: Path) -> Path:
    """Where it is remembered that a file was hashed."""
    return path.with_name(f".{path.stem}.checked")


def _facts(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}


def _wait_for_the_clock(mtime_ns: int) -> None:
    """A second write within one clock tick would not change the modification time, so the hash has to come later than
    that.
    """
    age_s = time.time() - mtime_ns / 1e9
    if age_s < _CLOCK_TICK_S:
        time.sleep(_CLOCK_TICK_S)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
