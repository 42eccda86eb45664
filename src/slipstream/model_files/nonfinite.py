"""NaN and infinite weights, found by sampling: such a model answers with noise, or not at all."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.errors import UnsupportedModelError
from slipstream.findings import Finding, rule
from slipstream.models.gguf_header import GgufHeader, TensorInfo
from slipstream.models.gguf_quant import LINE_ELEMENTS, block_sizes, check_storage, read_rows, to_raw_tensor
from slipstream.models.safetensors_file import FLOATS, StoredTensor

SAMPLED_BYTES = 1 << 18  # of a tensor; smaller tensors are read whole
MAX_S = 1.0  # for one model: 1,500 tensors of a disk that reads 400 MB/s
_PIECES = 4  # a sample is spread over the tensor
_EXPONENTS = {"F16": 0x7C00, "BF16": 0x7F80}  # a number with all these bits set is infinite or NaN

NONFINITE = rule(
    "weights-nonfinite",
    "blocks",
    "Weights are NaN or infinite",
    "A weight that is not a number spreads to every result. The training or a conversion to fewer bits overflowed, or "
    "the file is damaged.",
    "Download the model again. If it is the same, use another quantisation or conversion of it.",
)


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    values: npt.NDArray[Any]
    kind: str  # F32, F16, BF16, F64


def sampled_safetensors(path: Path, tensors: dict[str, StoredTensor]) -> list[Finding]:
    """At most one finding. Reads a part of each tensor of floats."""
    floats = [tensor for tensor in tensors.values() if tensor.dtype in FLOATS and tensor.num_bytes]
    return _judged(path, (sample for tensor in _spread(floats) for sample in _stored_samples(tensor)))


def sampled_gguf(header: GgufHeader) -> list[Finding]:
    """Like sampled_safetensors. Blocks of quantised tensors have scales, which can be NaN too."""
    infos = _spread(list(header.tensors.values()))
    return _judged(header.path, (sample for info in infos for sample in _row_samples(header, info)))


def _spread(tensors: list[Any]) -> Iterator[Any]:
    """All of them, in an order in which the first few are from everywhere."""
    step = max(1, math.isqrt(len(tensors)))
    for start in range(step):
        yield from islice(tensors, start, None, step)


def _judged(path: Path, samples: Iterator[Sample]) -> list[Finding]:
    limit = time.monotonic() + MAX_S
    for sample in samples:
        num_bad = _num_nonfinite(sample)
        if num_bad:
            seen = f"{path}: {num_bad:,} of {sample.values.size:,} sampled values of {sample.name[:200]!r} are NaN or "
            return [NONFINITE.finding(f"{seen}infinite")]
        if time.monotonic() > limit:
            break
    return []


def _num_nonfinite(sample: Sample) -> int:
    if sample.kind in _EXPONENTS:
        exponent = _EXPONENTS[sample.kind]
        return int(np.count_nonzero((sample.values.view(np.uint16) & exponent) == exponent))
    return int(np.count_nonzero(~np.isfinite(sample.values)))


def _stored_samples(tensor: StoredTensor) -> Iterator[Sample]:
    dtype = {"F32": np.float32, "F64": np.float64}.get(tensor.dtype, np.uint16)
    for values in _pieces(np.frombuffer(tensor.data, dtype, math.prod(tensor.shape), tensor.start), SAMPLED_BYTES):
        yield Sample(tensor.name, values, tensor.dtype)


def _row_samples(header: GgufHeader, info: TensorInfo) -> Iterator[Sample]:
    try:
        check_storage(header, info)
    except UnsupportedModelError:  # a type that can't be converted to floats here
        return
    num_elements, num_bytes = block_sizes()[info.type_id]
    # Blocks have to become floats, which is quick for whole lines only: each piece is one.
    line_bytes = LINE_ELEMENTS // num_elements * num_bytes
    wanted = SAMPLED_BYTES if num_elements == 1 else _PIECES * line_bytes
    for blocks in _pieces(read_rows(header, info).reshape(-1, num_bytes), wanted):
        with np.errstate(all="ignore"):
            raw = to_raw_tensor(blocks, (len(blocks), num_elements), info.type_id)
        yield Sample(info.name, raw.data, raw.kind)


def _pieces(items: npt.NDArray[Any], num_bytes: int) -> Iterator[npt.NDArray[Any]]:
    """Parts of an array with about that many bytes in all; the array itself if it is small."""
    if items.nbytes <= num_bytes:
        yield items
        return
    length = num_bytes // _PIECES // (items.nbytes // len(items))
    for piece in range(_PIECES):
        start = (len(items) - length) * piece // (_PIECES - 1)
        yield items[start : start + length]
