"""Writes into the cache: a file appears complete or not at all, even if processes are killed or run at the same
time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from slipstream.errors import ModelNotFoundError

try:
    import fcntl
except ImportError:  # Windows: no lock, but unique names and an atomic rename keep every file complete
    fcntl = None  # type: ignore[assignment]

PARTIAL_SUFFIX = ".partial"
UNLOCKED_STALE_S = 24 * 3600.0  # without a lock, only files this old are certainly abandoned


@contextmanager
def exclusive(folder: Path, name: str) -> Iterator[None]:
    """Holds the lock of `name`; other processes wait. Incomplete files of a killed process are removed first."""
    with _open_lock(folder, name) as lock:
        _wait_for(lock, folder)
        _remove_partials(folder, name, older_than_s=0.0 if fcntl is not None else UNLOCKED_STALE_S)
        yield


@contextmanager
def scratch_folder(folder: Path, name: str) -> Iterator[Path]:
    """A folder next to the final file (so that renaming is atomic), removed at the end."""
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=PARTIAL_SUFFIX, dir=folder))
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sync(file: IO[bytes]) -> None:
    """Waits until a file's bytes are on the disk, so that a renamed file is never incomplete."""
    file.flush()
    os.fsync(file.fileno())


def cannot_write(folder: Path, error: OSError) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"can't write to the cache folder {folder}: {error.strerror or error}. Free some space or set "
        "SLIPSTREAM_CACHE to another folder."
    )


def _open_lock(folder: Path, name: str) -> IO[bytes]:
    try:
        return (folder / f".{name}.lock").open("ab")
    except OSError as error:
        raise cannot_write(folder, error) from error


def _wait_for(lock: IO[bytes], folder: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:  # some network disks have no locks
        raise cannot_write(folder, error) from error


def _remove_partials(folder: Path, name: str, older_than_s: float) -> None:
    for entry in folder.glob(f".{name}.*{PARTIAL_SUFFIX}"):
        try:
            abandoned = time.time() - entry.stat().st_mtime >= older_than_s
        except OSError:  # another process was faster
            continue
        if abandoned:
            shutil.rmtree(entry, ignore_errors=True)
