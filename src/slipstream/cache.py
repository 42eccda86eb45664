"""The user's cache folder: fetched models and compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from slipstream.errors import SlipstreamError


def cache_folder(*parts: str) -> Path:
    """A folder of the cache, made if it is not there. `SLIPSTREAM_CACHE` moves the cache.

    Raises SlipstreamError when it can't be made.
    """
    root = os.environ.get("SLIPSTREAM_CACHE")
    folder = Path(root) if root else platformdirs.user_cache_path("slipstream", appauthor=False)
    folder = folder.joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SlipstreamError(
            f"the cache folder {folder} can't be made ({error.strerror}): set SLIPSTREAM_CACHE to a writable folder"
        ) from error
    return folder
