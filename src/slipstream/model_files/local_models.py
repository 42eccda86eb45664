"""Resolves a model spec to its place on this disk, like `slipstream.models.sources.spec`, but downloads nothing.

A check must not start a download of gigabytes: for a hub id only the cache is read, whether complete or not.
"""

from __future__ import annotations

from pathlib import Path

from slipstream.errors import ModelNotFoundError
from slipstream.models.files import expand_home
from slipstream.models.sources.builtin import BUILTIN_NAMES
from slipstream.models.sources.spec import HUB_SPEC, OLLAMA_PREFIX, Place, locate, looks_like_path


def local_place(spec: str | Path) -> Place:
    """The place of a model. A single `.safetensors` file is allowed here. Raises ModelNotFoundError."""
    text = str(spec)
    path = expand_home(text)
    if text.endswith(".safetensors") and _exists(path):
        return Place(path, path.stem)
    match = HUB_SPEC.fullmatch(text)
    is_elsewhere = text in BUILTIN_NAMES or text.startswith(OLLAMA_PREFIX) or looks_like_path(text) or _exists(path)
    if isinstance(spec, Path) or match is None or is_elsewhere:
        return locate(spec)
    folder = cached_snapshot(match["repo"], match["revision"])
    if folder is None:
        raise ModelNotFoundError(
            f"{text} is not in the local hub cache. Download it first: hf download {match['repo']}"
        )
    if match["file"]:
        return Place(folder / match["file"], Path(match["file"]).stem)
    return Place(folder, match["repo"].partition("/")[2])


def cached_snapshot(repo: str, revision: str | None = None) -> Path | None:
    """The snapshot folder of a hub repository in the cache, whatever it contains; None if there is no such folder."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except Exception:  # not cached, or an invalid id: the library has a different error for each
        return None


def _exists(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()
    except (OSError, ValueError):  # not a valid file name
        return False
