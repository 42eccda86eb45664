"""Writing into the cache: a file appears whole or not at all, whoever is killed or runs at the same time."""

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
except ImportError:  # Windows: no lock, but unique names and an atomic rename still keep every file whole
    fcntl = None  # type: ignore[assignment]

PARTIAL_SUFFIX = ".partial"
UNLOCKED_STALE_S = 24 * 3600.0  # without a lock, only what is this old is surely abandoned


@contextmanager
def exclusive(folder: Path, name: str) -> Iterator[None]:
    """Holds the lock of `name`; others wait. What a killed process left half-made is removed first."""
    with _open_lock(folder, name) as lock:
        _wait_for(lock, folder)
        _remove_partials(folder, name, older_than_s=0.0 if fcntl is not None else UNLOCKED_STALE_S)
        yield


@contextmanager
def scratch_folder(folder: Path, name: str) -> Iterator[Path]:
    """A folder beside the final file (so that renaming is atomic), removed at the end."""
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=PARTIAL_SUFFIX, dir=folder))
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sync(file: IO[bytes]) -> None:
    """Waits until a file's bytes are on the disk, so that renaming it never publishes a hole."""
    file.flush()
    os.fsync(file.fileno())


def cannot_write(folder: Path, error: OSError) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"The cache folder {folder} can't be written: {error.strerror or error}. "
        "Free some space or set SLIPSTREAM_CACHE to another folder."
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
        except OSError:  # someone else was faster
            continue
        if abandoned:
            shutil.rmtree(entry, ignore_errors=True)
