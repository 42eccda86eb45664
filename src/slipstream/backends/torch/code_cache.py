"""Code that was compiled on this machine, kept from one start to the next. Its hash is in its name."""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from pathlib import Path

from slipstream.cache import private_folder, read_private
from slipstream.errors import SlipstreamError
from slipstream.writing import OWNER_WRITES, write_whole

log = logging.getLogger("slipstream")


def kept_code(stem: str, suffix: str) -> tuple[Path, bytes] | None:
    """A cached file and its contents, if they match the hash in its name and no other user can write to it."""
    try:
        folder = private_folder("kernels")
    except SlipstreamError:
        return None
    for path in folder.glob(f"{stem}-*{suffix}"):
        code = read_private(path)
        if code is not None and path.name == _name(stem, code, suffix):
            return path, code
        log.warning("%s is damaged, or other users can write it: the kernels are compiled again", path)
        with suppress(OSError):
            path.unlink()
    return None


def keep_code(code: bytes, stem: str, suffix: str) -> Path | None:
    """Caches the code. Returns its file; None if the cache can't be written (logged)."""
    try:
        path = private_folder("kernels") / _name(stem, code, suffix)
        write_whole(path, code, OWNER_WRITES)
    except (OSError, SlipstreamError) as error:
        log.warning("the kernels are compiled at every start, because they can't be cached: %s", error)
        return None
    return path


def _name(stem: str, code: bytes, suffix: str) -> str:
    return f"{stem}-{hashlib.sha256(code).hexdigest()}{suffix}"
