"""The user's cache folder: fetched models, compiled kernels, measurements. What is run or trusted is checked when it is
read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

from slipstream.errors import SlipstreamError

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_path(*parts: str) -> Path:
    """A place in the cache, which may not exist. `SLIPSTREAM_CACHE` moves the cache.

    Raises SlipstreamError where there is no home folder.
    """
    chosen = os.environ.get("SLIPSTREAM_CACHE")
    try:
        root = Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("slipstream", appauthor=False)
    except RuntimeError as error:
        raise _no_home() from error
    if not chosen and not root.is_absolute():  # older platformdirs leave the "~" as it is
        raise _no_home()
    return root.joinpath(*parts)


def cache_folder(*parts: str) -> Path:
    """A folder of the cache, made if it is not there. Raises SlipstreamError when it can't be made."""
    folder = cache_path(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SlipstreamError(
            f"can't create the cache folder {folder} ({error.strerror}): set SLIPSTREAM_CACHE to a writable folder"
        ) from error
    return folder


def private_folder(*parts: str) -> Path:
    """A folder of the cache that only this user and root can write. Raises SlipstreamError when that can't be had."""
    folder = cache_folder(*parts)
    try:
        status = folder.stat()
        if _is_own(status) and status.st_mode & _WRITABLE_BY_OTHERS:  # a umask of 002 makes folders so
            folder.chmod(stat.S_IMODE(status.st_mode) & ~_WRITABLE_BY_OTHERS)
            status = folder.stat()
    except OSError as error:
        raise SlipstreamError(f"can't use the cache folder {folder}: {error.strerror}") from error
    if not _is_private(status):
        raise SlipstreamError(
            f"the cache folder {folder} belongs to another user or can be written by others: "
            "set SLIPSTREAM_CACHE to a folder of your own"
        )
    return folder


def read_private(path: Path) -> bytes | None:
    """The bytes of a file in a private folder. None where there is no file, or others could have written it."""
    try:
        status = path.lstat()
        return path.read_bytes() if stat.S_ISREG(status.st_mode) and _is_private(status) else None
    except OSError:
        return None


def _is_private(status: os.stat_result) -> bool:
    """Whether only this user and root can write it. Windows has no such bits: its user folders are private."""
    if not hasattr(os, "geteuid"):
        return True
    return (_is_own(status) or status.st_uid == 0) and not status.st_mode & _WRITABLE_BY_OTHERS


def _is_own(status: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and status.st_uid == os.geteuid()


def _no_home() -> SlipstreamError:
    return SlipstreamError(
        "there is no home folder for the cache: set HOME, or set SLIPSTREAM_CACHE to a writable folder"
    )
