"""Checks of weights files that do not depend on the format, and the rules that all formats share."""

from __future__ import annotations

import codecs
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipstream.findings import Finding, rule
from slipstream.models.files import LFS_MAGIC
from slipstream.models.hf.safetensors_file import LENGTH_BYTES, MAX_HEADER_BYTES
from slipstream.reading import open_regular

WeightsFormat = Literal["safetensors", "GGUF"]
MAX_REPORTED = 5  # findings of one kind per file; a damaged header can give thousands

MISSING = rule(
    "weights-missing",
    "blocks",
    "The model has no weights",
    "No engine can load this model: {meaning}",
    "{fix}",
)
NOT_HERE = rule(
    "weights-not-here",
    "blocks",
    "The model is not on this machine",
    "Nothing was found under this name, so its files could not be checked.",
    "Check the name or path, or fetch the model: slipstream pull MODEL.",
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
TEXT = rule(
    "weights-text",
    "blocks",
    "A weights file is a text or a web page",
    "The file has text instead of weights: the download saved an error page or a login page under the file's name.",
    "Delete it and download it again with `hf download ORG/NAME`; a gated model needs `hf auth login` first.",
)
OTHER_FORMAT = rule(
    "weights-other-format",
    "blocks",
    "A weights file has another format than its name says",
    "Renaming a file does not convert it: engines choose the reader by the name, and it fails at the first bytes.",
    "{fix}",
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


# The first bytes of formats that are found under the names of others.
_MAGICS = {
    b"GGUF": "GGUF",
    b"PK\x03\x04": "a zip archive, as torch.save writes it (a pickle)",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"\x1f\x8b": "gzip",
    b"\x93NUMPY": "a numpy array",
    b"\x89HDF": "HDF5",
    b"tjgg": "GGML, the format before GGUF",
    b"fmgg": "GGML, the format before GGUF",
    b"lmgg": "GGML, the format before GGUF",
}
_FIXES = {
    "GGUF": "Rename it to .gguf and pass its path.",
    "safetensors": "Rename it to .safetensors, and pass its folder, with config.json and the tokenizer in it.",
}
_OTHER_FIX = "Download the model as safetensors or GGUF, or convert it with the program that wrote the file."
_FIRST_BYTES = 512
_LEAST_TEXT = 16  # bytes; fewer may be the beginning of any format


def plain_file_problem(path: Path, expected: WeightsFormat | None = None) -> Finding | None:
    """Why a path is not a file with content of the expected format, or None. Opens nothing that could block, such as
    a pipe.
    """
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
    return _first_bytes_problem(path, expected)


def _first_bytes_problem(path: Path, expected: WeightsFormat | None) -> Finding | None:
    try:
        with open_regular(path) as file:
            first = file.read(_FIRST_BYTES)
    except OSError as error:
        return NOT_A_FILE.finding(f"{path} can't be read: {error.strerror or error}", path=path)
    if first.startswith(LFS_MAGIC):
        return POINTER.finding(f"{path} ({path.stat().st_size} bytes) begins with {LFS_MAGIC.decode()!r}")
    if _is_text(first):
        return TEXT.finding(f"{path} begins with {first[:80].decode(errors='replace')!r}")
    found = _other_format(first, expected)
    if found is None:
        return None
    return OTHER_FORMAT.finding(f"{path} is {found}, not {expected}", fix=_FIXES.get(found, _OTHER_FIX))


def _is_text(first: bytes) -> bool:
    """Both formats have zero bytes near the beginning. The last character may be cut."""
    if len(first) < _LEAST_TEXT or any(byte < 32 and byte not in b"\t\n\r\f" for byte in first):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(first)
    except UnicodeDecodeError:
        return False
    return True


def _other_format(first: bytes, expected: WeightsFormat | None) -> str | None:
    has_header = int.from_bytes(first[:LENGTH_BYTES], "little") <= MAX_HEADER_BYTES and first[8:9] == b"{"
    if expected is None or (expected == "safetensors" and has_header):
        return None
    if expected == "GGUF" and has_header:
        return "safetensors"
    magic = next((magic for magic in _MAGICS if first.startswith(magic)), None)
    return _MAGICS[magic] if magic and _MAGICS[magic] != expected else None


def from_error(error: Exception) -> Finding:
    """Turns an error raised by a reader into a finding."""
    text = without_advice(error)
    is_short = "truncated" in text or "ends inside its header" in text or "too few" in text
    return (TRUNCATED if is_short else DAMAGED).finding(text or type(error).__name__)


def without_advice(error: Exception) -> str:
    """The text of a reader's error without its last sentence, what to do: rules have their own."""
    text = re.sub(r"(?<=[.;)])\s+(Download|download|Convert|Copy|Merge|Pass|Change|Check|Use|Run)\b.*$", "", str(error))
    return text.rstrip(" ;")


def overlaps(path: Path, spans: list[Span]) -> Iterator[Finding]:
    """Findings for tensors that overlap. `spans` is sorted by start and has no empty tensors."""
    end, owner = 0, ""
    for span in spans:
        if span.start < end:
            shared = min(end, span.end) - span.start
            yield OVERLAP.finding(f"{path.name}: {span.name!r} shares {shared:,} bytes with {owner!r}")
        if span.end > end:
            end, owner = span.end, span.name
