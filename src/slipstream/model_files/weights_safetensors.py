"""safetensors files: header, bounds of every tensor, no gaps, no overlaps; the index of a sharded checkpoint.

The reader in models/ stops at the first error in a file. Here every error is reported, and sizes are bounded, so a
malicious header can't use much time or memory.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from slipstream.errors import ModelError
from slipstream.findings import Finding, rule
from slipstream.host import no_collection
from slipstream.model_files.weight_files import (
    DAMAGED,
    GAP,
    MAX_REPORTED,
    TRUNCATED,
    Span,
    from_error,
    overlaps,
    plain_file_problem,
)
from slipstream.models.files import map_file, read_json
from slipstream.models.hf.safetensors_file import ITEM_BYTES, LENGTH_BYTES, MAX_HEADER_BYTES, parse_header

MAX_DIMENSIONS = 16  # torch allows 64, weights have at most 5
MAX_BYTES = 1 << 60
# Packed types of the format that the reader in models/ does not support: bits per element.
ITEM_BITS = {name: 8 * size for name, size in ITEM_BYTES.items()} | {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}

SHARDS = rule(
    "weights-shards",
    "blocks",
    "The index of a sharded checkpoint does not match its files",
    "The checkpoint is split into several files, and the index of tensors does not match them: a download is "
    "incomplete, or files of two models are mixed.",
    "Download the missing files: hf download ORG/NAME (it skips complete files).",
)


@dataclass(frozen=True, slots=True)
class StoredShape:
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class FileReport:
    """The tensors of a file, as far as it could be read, and its problems."""

    tensors: dict[str, StoredShape]
    findings: list[Finding]
    files: list[Path] = field(default_factory=list)  # that belong to the model


def check_file(path: Path) -> FileReport:
    """Reads the header only. Never raises."""
    problem = plain_file_problem(path, "safetensors")
    if problem is not None:
        return FileReport({}, [problem])
    try:
        with map_file(path) as data, no_collection():  # its objects stay alive: collecting takes half the time
            return _check_mapped(path, data)
    except (ModelError, OSError) as error:
        return FileReport({}, [from_error(error)])


def check_index(index: Path) -> FileReport:
    """Checks the index of a sharded checkpoint, every file it names, and every tensor in them. Never raises."""
    try:
        weight_map = read_json(index).get("weight_map")
    except ModelError as error:
        return FileReport({}, [from_error(error)])
    if not isinstance(weight_map, dict) or not weight_map or not _are_file_names(weight_map.values()):
        seen = f"{index} has no weight_map of tensor names to plain file names"
        return FileReport({}, [SHARDS.finding(seen)])
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (index.parent / name).exists()]
    findings = [_missing_shards(index, missing, len(names))] if missing else []
    reports = {name: check_file(index.parent / name) for name in sorted(set(names) - set(missing))}
    findings += [finding for report in reports.values() for finding in report.findings]
    findings += islice(_misplaced(index, weight_map, reports), MAX_REPORTED)
    tensors = {key: shape for report in reports.values() for key, shape in report.tensors.items()}
    return FileReport(tensors, findings, [index.parent / name for name in names])


def _check_mapped(path: Path, data: mmap.mmap) -> FileReport:
    size = len(data)
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if size < LENGTH_BYTES or length > size - LENGTH_BYTES:
        stated = f"its header of {length:,} bytes" if size >= LENGTH_BYTES else "a header"
        return FileReport({}, [TRUNCATED.finding(f"{path} has {size:,} bytes, too few for {stated}")])
    if length > MAX_HEADER_BYTES:
        seen = f"{path} has a header of {length:,} bytes; the format allows {MAX_HEADER_BYTES:,}"
        return FileReport({}, [DAMAGED.finding(seen)])
    header = parse_header(path, data[LENGTH_BYTES : LENGTH_BYTES + length])
    if not header:
        return FileReport({}, [DAMAGED.finding(f"{path} has no tensors")])
    return _check_tensors(path, header, size - LENGTH_BYTES - length)


def _check_tensors(path: Path, header: dict[str, Any], body: int) -> FileReport:
    tensors: dict[str, StoredShape] = {}
    spans: list[Span] = []
    findings: list[Finding] = []
    for name, entry in header.items():
        flaw = _flaw(entry)
        if flaw is None:
            start, end = entry["data_offsets"]
            tensors[name] = StoredShape(entry["dtype"], tuple(entry["shape"]), end - start)
            spans.append(Span(start, end, name))
        elif len(findings) < MAX_REPORTED:
            findings.append(DAMAGED.finding(f"{path.name}: the tensor {name[:200]!r} {flaw}"))
    spans.sort(key=lambda span: (span.start, span.end))
    findings += islice(_past_end(path, spans, body), 1)
    findings += islice(overlaps(path, [span for span in spans if span.end > span.start]), MAX_REPORTED)
    if not findings:
        findings += islice(_gaps(path, spans, body), MAX_REPORTED)
    return FileReport(tensors, findings, [path])


def _flaw(entry: Any) -> str | None:
    """The error in the description of one tensor, or None."""
    if not isinstance(entry, dict):
        return "has no description"
    fields: dict[str, Any] = entry
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape", ""), fields.get("data_offsets", "")
    if not isinstance(dtype, str) or dtype not in ITEM_BITS:
        return f"has the unknown type {str(dtype)[:40]!r}"
    if not _are_sizes(shape, MAX_DIMENSIONS) or not _are_sizes(offsets, 2) or len(offsets) != 2:
        return f"has the shape {str(shape)[:80]} and the offsets {str(offsets)[:80]}, which are invalid"
    bits = math.prod(shape) * ITEM_BITS[dtype]
    if bits % 8 or bits // 8 != offsets[1] - offsets[0]:
        return f"of shape {shape} as {dtype} needs {bits // 8:,} bytes and has {offsets[1] - offsets[0]:,}"
    return None


def _are_sizes(value: Any, max_length: int) -> bool:
    if not isinstance(value, list) or len(value) > max_length:
        return False
    return all(type(item) is int and 0 <= item <= MAX_BYTES for item in value)


def _past_end(path: Path, spans: list[Span], body: int) -> Iterator[Finding]:
    late = [span for span in spans if span.end > body]
    if late:
        last = max(late, key=lambda span: span.end)
        yield TRUNCATED.finding(
            f"{path}: {len(late)} of {len(spans)} tensors are past the end of the file; {last.name[:200]!r} ends at "
            f"byte {last.end:,} of the data, but the file has only {body:,}"
        )


def _gaps(path: Path, spans: list[Span], body: int) -> Iterator[Finding]:
    position = 0
    for span in spans:
        if span.start > position:
            yield GAP.finding(f"{path.name}: {span.start - position:,} bytes before {span.name!r} belong to no tensor")
        position = max(position, span.end)
    if position < body:
        yield GAP.finding(f"{path.name}: the last {body - position:,} bytes belong to no tensor")


def _are_file_names(names: Any) -> bool:
    """An index must not point outside its folder."""
    return all(isinstance(name, str) and name and Path(name).name == name and "\0" not in name for name in names)


def _missing_shards(index: Path, missing: list[str], count: int) -> Finding:
    shown = ", ".join(missing[:MAX_REPORTED])
    return SHARDS.finding(f"{index.parent}: {len(missing)} of the {count} files in its index are missing: {shown}")


def _misplaced(index: Path, weight_map: dict[str, str], reports: dict[str, FileReport]) -> Iterator[Finding]:
    """Tensors that are not where the index says. Files with errors of their own are skipped."""
    for name, shard in weight_map.items():
        report = reports.get(shard)
        if report is not None and not report.findings and name not in report.tensors:
            yield SHARDS.finding(f"{index.name} says that {name[:200]!r} is in {shard}, but it is not")
    for shard, report in reports.items():
        unlisted = [name for name in report.tensors if weight_map.get(name) != shard and not report.findings]
        if unlisted:
            first = f"first {unlisted[0][:200]!r}"
            yield SHARDS.finding(f"{shard} has {len(unlisted)} tensors that {index.name} does not list for it, {first}")
