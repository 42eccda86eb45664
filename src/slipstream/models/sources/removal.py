"""Removing fetched models: the built-in's cached copy, and snapshots in the hub library's cache.

Only files below `Removal.root` are deleted. A link is removed as a link; what it points to goes only if that is a blob
of the same repository which no other snapshot refers to.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.cache import cache_path
from slipstream.errors import ModelNotFoundError, SlipstreamError, UsageError
from slipstream.models.sources.cache_writes import exclusive
from slipstream.models.sources.checked_file import record_of
from slipstream.models.sources.hub import HubModel


@dataclass(frozen=True, slots=True)
class Removal:
    """Files to delete, all below `root`. Folders that this leaves empty go too."""

    root: Path
    files: tuple[Path, ...]
    num_bytes: int  # that deleting them frees
    lock: str | None = None  # name of the lock in `root` under which others write these files

    def run(self) -> None:
        """Deletes the files. Raises SlipstreamError when one lies outside `root` (nothing is deleted then) or can't be
        deleted."""
        root = self.root.resolve()
        if outside := next((file for file in self.files if not file.parent.resolve().is_relative_to(root)), None):
            raise SlipstreamError(f"{outside} leads out of {self.root} through a link; nothing was removed")
        with exclusive(self.root, self.lock) if self.lock else nullcontext():
            for file in self.files:
                try:
                    file.unlink(missing_ok=True)
                except OSError as error:
                    raise SlipstreamError(f"{file} can't be removed: {error.strerror or error}") from error
        for folder, _, _ in os.walk(self.root, topdown=False):
            with suppress(OSError):  # not empty
                Path(folder).rmdir()


def builtin_removal(name: str) -> Removal:
    """The cached copy of a built-in model, and the record of its hash. Raises ModelNotFoundError."""
    folder = cache_path("models")
    file = folder / f"{name}.gguf"
    if not os.path.lexists(file):
        raise ModelNotFoundError(f"{name} is not in the cache ({folder}); there is nothing to remove.")
    return Removal(folder, (file, record_of(file)), _num_bytes([file]), lock=name)


def hub_removal(model: HubModel, names: Collection[str] | None = None) -> Removal:
    """All that the hub cache holds of a repository; of one revision where the model names it.

    `names`: only these files of it. Raises ModelNotFoundError, and UsageError for a repository that is linked into the
    cache.
    """
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    root = cache / f"models--{model.repo.replace('/', '--')}"
    if root.is_symlink():
        raise UsageError(f"{root} is a link to {root.resolve()}, which is not in the hub cache. Remove the link.")
    snapshots = _files_below(root / "snapshots")
    commits = _commits(root, model.revision)
    gone = [file for file in snapshots if _is_wanted(file.relative_to(root / "snapshots"), commits, names)]
    if not gone and (names is not None or model.revision is not None or not root.is_dir()):
        raise ModelNotFoundError(f"{model} is not in the hub cache ({cache}). See what is there: slipstream list")
    kept = set(snapshots) - set(gone)
    if not kept:  # nothing of the repository is left to use
        everything = _files_below(root)
        return Removal(root, tuple(everything), _num_bytes(everything))
    files = [*gone, *_unused_blobs(root, gone, kept), *_dangling_refs(root, kept)]
    return Removal(root, tuple(files), _num_bytes(files))


def _is_wanted(relative: Path, commits: set[str] | None, names: Collection[str] | None) -> bool:
    commit, *path = relative.parts
    return (commits is None or commit in commits) and (names is None or "/".join(path) in names)


def _commits(root: Path, revision: str | None) -> set[str] | None:
    """Names of snapshots that a revision stands for: a commit, or a branch or tag. None: any."""
    return None if revision is None else {revision, *(c for name, c in _refs(root).items() if name == revision)}


def _refs(root: Path) -> dict[str, str]:
    """Commits by branch or tag."""
    folder = root / "refs"
    files = (file for file in _files_below(folder) if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_text(errors="replace").strip() for file in files}


def _dangling_refs(root: Path, kept: Iterable[Path]) -> list[Path]:
    commits = {file.relative_to(root / "snapshots").parts[0] for file in kept}
    return [root / "refs" / name for name, commit in _refs(root).items() if commit not in commits]


def _unused_blobs(root: Path, gone: Iterable[Path], kept: Iterable[Path]) -> list[Path]:
    """Blobs that only the files that go refer to."""
    used = {file.resolve() for file in kept}
    blobs = {_blob(root, file) for file in gone if file.is_symlink()}
    return sorted(blob for blob in blobs if blob is not None and blob.resolve() not in used)


def _blob(root: Path, link: Path) -> Path | None:
    """The blob of the repository that a link names; None for a link to somewhere else."""
    target = link.parent / link.readlink()
    if target.parent.resolve() != (root / "blobs").resolve():
        return None
    return root / "blobs" / target.name


def _files_below(folder: Path) -> list[Path]:
    """Files and links, those to folders included, which are not followed."""
    if folder.is_symlink():
        return []
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def _num_bytes(files: Iterable[Path]) -> int:
    return sum(file.lstat().st_size for file in files if not file.is_symlink() and file.is_file())
