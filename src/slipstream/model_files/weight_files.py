"""Checks of weights files that do not depend on the format, and the rules that all formats share."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream.findings import Finding, rule
from slipstream.models.files import LFS_MAGIC

MAX_REPORTED = 5  # findings of one kind per file; a damaged header can give thousands

MISSING = rule(
    "weights-missing",
    "blocks",
    "The model has no weights",
    "No engine can load this model: {meaning}",
    "{fix}",
)
NOT_A_FILE = rule(
    "weights-not-a-file",
    "blocks",
    "The weights path is not a readable file",
    "The path has the name of a weights file, but it can't be read as one.",
    "Check the path and its permissions (`ls -l {path}`), or download the file again.",
)
EMPTY = rule(
    "weights-empty",
    "blocks",
    "A weights file is empty",
    "The download or copy stopped before the first byte.",
    "Delete the file and download it again; check that the disk is not full (`df -h`).",
)
POINTER = rule(
    "weights-pointer",
    "blocks",
    "A weights file is a Git LFS pointer",
    "The repository was cloned without Git LFS: this text file of about 130 bytes is a placeholder for the real one. "
    "Engines report a header that is too large, or a file that is not safetensors.",
    "Run `git lfs install && git lfs pull` in that folder, or download with `hf download ORG/NAME`.",
)
TRUNCATED = rule(
    "weights-truncated",
    "blocks",
    "A weights file is truncated",
    "The file is shorter than its own header says: the download or copy was interrupted.",
    "Download it again (`hf download ORG/NAME`, `ollama pull NAME`), and check that the disk is not full (`df -h`).",
)
DAMAGED = rule(
    "weights-damaged",
    "blocks",
    "The header of a weights file contradicts itself",
    "The header does not match the file: the file is damaged, or has another format.",
    "Delete the file and download or convert it again.",
)
OVERLAP = rule(
    "weights-overlap",
    "blocks",
    "Tensors of a file overlap",
    "Two tensors use the same bytes, so at least one is wrong. The file is damaged, or was written by a faulty tool.",
    "Download it again. If you made it yourself, save it again with a current safetensors or llama.cpp.",
)
GAP = rule(
    "weights-gap",
    "blocks",
    "Bytes of a file belong to no tensor",
    "A valid safetensors file has no such bytes; the safetensors library refuses it ('invalid offset', 'incomplete "
    "metadata'). A tensor is missing from the header, or bytes were added to the file.",
    "Download it again. If you made it yourself, save it again with a current safetensors.",
)


@dataclass(frozen=True, slots=True)
class Span:
    """The byte range of a tensor."""

    start: int
    end: int
    name: str


def plain_file_problem(path: Path) -> Finding | None:
    """Why a path is not a file with content, or None. Opens nothing that could block, such as a pipe."""
    try:
        status = path.stat()
    except FileNotFoundError:
        what = "a link to a missing file" if path.is_symlink() else "missing"
        return MISSING.finding(
            f"{path} is {what}", meaning="its weights file is missing.", fix="Download it: hf download ORG/NAME"
        )
    except (OSError, ValueError) as error:
        return NOT_A_FILE.finding(f"{path}: {error}", path=path)
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        return NOT_A_FILE.finding(f"{path} is {kind}", path=path)
    if status.st_size == 0:
        return EMPTY.finding(f"{path} has 0 bytes")
    return _first_bytes_problem(path)


def _first_bytes_problem(path: Path) -> Finding | None:
    try:
        with path.open("rb") as file:
            first = file.read(len(LFS_MAGIC))
    except OSError as error:
        return NOT_A_FILE.finding(f"{path} can't be read: {error.strerror or error}", path=path)
    if first == LFS_MAGIC:
        return POINTER.finding(f"{path} ({path.stat().st_size} bytes) begins with {LFS_MAGIC.decode()!r}")
    return None


def from_error(error: Exception) -> Finding:
    """Turns an error raised by a reader into a finding. The error's advice is dropped: the rule has its own fix."""
    text = re.sub(r"\s*(Download|Convert|Copy|Merge|Pass)\b[^.]*(\.gguf[^.]*)?\.$", "", str(error))
    is_short = "truncated" in text or "ends inside its header" in text or "too few" in text
    return (TRUNCATED if is_short else DAMAGED).finding(text or type(error).__name__)


def overlaps(path: Path, spans: list[Span]) -> Iterator[Finding]:
    """Findings for tensors that overlap. `spans` is sorted by start and has no empty tensors."""
    end, owner = 0, ""
    for span in spans:
        if span.start < end:
            shared = min(end, span.end) - span.start
            yield OVERLAP.finding(f"{path.name}: {span.name!r} shares {shared:,} bytes with {owner!r}")
        if span.end > end:
            end, owner = span.end, span.name
