"""GGUF files: header, tensor types, bounds, overlaps; the parts of a split file."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from slipstream.errors import ModelError, UnsupportedModelError
from slipstream.findings import Finding, rule
from slipstream.model_files.nonfinite import sampled_gguf
from slipstream.model_files.weight_files import (
    DAMAGED,
    MAX_REPORTED,
    TRUNCATED,
    Span,
    from_error,
    overlaps,
    plain_file_problem,
)
from slipstream.models.gguf.header import GgufHeader, TensorInfo, read_header

MAX_PARTS = 1000  # the largest model in use has fewer than 100
PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
# Types that llama.cpp removed; files with these types have to be converted again.
REMOVED_TYPES = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"}

TYPE = rule(
    "weights-gguf-type",
    "blocks",
    "A GGUF file has tensors of an unknown type",
    "The type is newer than this version of Slipstream, was removed from llama.cpp, or the header is damaged.",
    "Use another quantisation of the model, such as Q4_K_M or Q8_0, or convert it again with a current llama.cpp.",
)
VERSION = rule(
    "weights-gguf-version",
    "blocks",
    "A GGUF file has an unsupported version or byte order",
    "Current engines read little-endian GGUF files of versions 2 and 3.",
    "Convert the model again with a current llama.cpp: python convert_hf_to_gguf.py FOLDER --outfile model.gguf",
)
PARTS = rule(
    "weights-gguf-parts",
    "blocks",
    "Parts of a split GGUF are missing",
    "The model is split into several files, and engines load all of them from one folder.",
    "Download the missing parts into the same folder, or merge all parts on a machine that has them: llama-gguf-split "
    "--merge FIRST_PART OUTPUT",
)


def check_gguf(path: Path) -> list[Finding]:
    """Reads the header of each part and samples the weights. Never raises."""
    findings = _missing_parts(path)
    return findings or [finding for part in parts(path) for finding in _check_part(part, path)]


def _check_part(path: Path, asked: Path) -> list[Finding]:
    problem = plain_file_problem(path, "GGUF")
    if problem is not None:
        return [problem]
    try:
        header = read_header(path)
    except UnsupportedModelError as error:
        return [VERSION.finding(str(error))]
    except (ModelError, OSError, ValueError, OverflowError) as error:
        return [from_error(error)]
    findings = list(islice(_tensor_findings(header), MAX_REPORTED)) or _split_findings(header, asked)
    findings += islice(overlaps(path, _spans(header)), MAX_REPORTED)
    if not header.tensors and "split.count" not in header.metadata:
        findings.append(DAMAGED.finding(f"{path} has no tensors"))
    return findings or sampled_gguf(header)


@functools.cache
def _block_sizes() -> dict[int, tuple[int, int]]:
    """(elements, bytes) of one block, by type id."""
    import gguf

    return {int(kind): sizes for kind, sizes in gguf.constants.GGML_QUANT_SIZES.items()}


def stored_bytes(info: TensorInfo) -> int | None:
    """Bytes of a tensor as stored; None for an unknown type, or if rows are not a whole number of blocks."""
    sizes = _block_sizes().get(info.type_id)
    if sizes is None or info.shape[-1] % sizes[0]:
        return None
    return math.prod(info.shape) // sizes[0] * sizes[1]


def _tensor_findings(header: GgufHeader) -> Iterator[Finding]:
    size = len(header.data)
    for info in header.tensors.values():
        name, num_bytes = info.name[:200], stored_bytes(info)
        if info.type_id not in _block_sizes():
            kind = REMOVED_TYPES.get(info.type_id, "unknown")
            yield TYPE.finding(f"{header.path}: the tensor {name!r} is stored as type {info.type_id} ({kind})")
        elif num_bytes is None:
            yield DAMAGED.finding(
                f"{header.path}: rows of {name!r} have {info.shape[-1]:,} elements, which is not a whole number of "
                "blocks"
            )
        elif info.offset + num_bytes > size:
            yield TRUNCATED.finding(
                f"{header.path}: the tensor {name!r} ends at byte {info.offset + num_bytes:,}, but the file has only "
                f"{size:,} bytes"
            )


def _spans(header: GgufHeader) -> list[Span]:
    sized = ((info, stored_bytes(info)) for info in header.tensors.values())
    spans = [Span(info.offset, info.offset + size, info.name) for info, size in sized if size]
    return sorted(spans, key=lambda span: (span.start, span.end))


def _missing_parts(path: Path) -> list[Finding]:
    every = parts(path)
    missing = [part.name for part in every if not part.exists()] if len(every) > 1 and path.exists() else []
    shown = ", ".join(missing[:MAX_REPORTED])
    return [PARTS.finding(f"{len(missing)} of {len(every)} parts are missing: {shown}")] if missing else []


def _split_findings(header: GgufHeader, asked: Path) -> list[Finding]:
    """What a file says of its parts against the names of the files."""
    count, number = header.metadata.get("split.count", 0), header.metadata.get("split.no")
    every = parts(asked)
    if not isinstance(count, int) or (count <= 1 and len(every) == 1):
        return []
    if count != len(every):
        is_split = f"says that it is one of {count} parts" if count > 1 else "does not say that it is split"
        return [PARTS.finding(f"{header.path.name} {is_split}, but by its name it is one of {len(every)}")]
    if isinstance(number, int) and every[min(number, count - 1)] != header.path:
        return [PARTS.finding(f"{header.path.name} says that it is part {number + 1} of {count}: parts were renamed")]
    if asked == header.path != every[0]:
        return [PARTS.finding(f"{header.path.name} is not the first part; engines load a model by {every[0].name}")]
    return []


def parts(path: Path) -> list[Path]:
    """All files of a split GGUF, by name; the file itself if it is not split."""
    match = PART_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count <= MAX_PARTS:
        return [path]
    return [path.with_name(f"{match['stem']}-{number:05d}-of-{match['count']}.gguf") for number in range(1, count + 1)]
