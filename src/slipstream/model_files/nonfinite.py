"""NaN, infinite and absurdly large weights, found by sampling: such a model answers with noise, or not at all."""

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
from slipstream.models.gguf.dequantise import LINE_ELEMENTS, block_sizes, check_storage, read_rows, to_raw_tensor
from slipstream.models.gguf.header import GgufHeader, TensorInfo
from slipstream.models.hf.safetensors_file import FLOATS, StoredTensor

SAMPLED_BYTES = 1 << 18  # of a tensor; smaller tensors are read whole
MAX_S = 1.0  # for one model: 1,500 tensors of a disk that reads 400 MB/s
_PIECES = 4  # a sample is spread over the tensor
_LARGE = 1e3  # the largest weights of trained models, biases of Qwen2.5, are some hundreds
_ABSURD = 1e18  # its square, as norms compute it, is infinite in float32

NONFINITE = rule(
    "weights-nonfinite",
    "blocks",
    "Weights are NaN, infinite, or too large to compute with",
    "A weight that is not a number spreads to every result. The training or a conversion to fewer bits overflowed, or "
    "the file is damaged.",
    "Download the model again. If it is the same, use another quantisation or conversion of it.",
)
LARGE = rule(
    "weights-large",
    "note",
    "A weight is much larger than those of trained models",
    "Results may overflow in 16 bits, and the logits are then NaN. A damaged file has such weights; few models do.",
    "If the model answers with noise, or its logits are NaN: download it again, or use a wider type (--dtype fp32, "
    "with llama.cpp --kv-type f32).",
)


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    values: npt.NDArray[Any]
    kind: str  # F32, F16, BF16, F64


def sampled_safetensors(path: Path, tensors: dict[str, StoredTensor]) -> list[Finding]:
    """At most one finding. Reads a part of each tensor of floats."""
    # Masks are infinite on purpose.
    floats = [
        tensor
        for tensor in tensors.values()
        if tensor.dtype in FLOATS and tensor.num_bytes and "mask" not in tensor.name
    ]
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
    limit, large = time.monotonic() + MAX_S, list[Finding]()
    for sample in samples:
        if num_bad := _num_over(sample, _ABSURD):
            seen = f"{path}: {num_bad:,} of {sample.values.size:,} sampled values of {sample.name[:200]!r} are NaN, "
            return [NONFINITE.finding(f"{seen}infinite or above {_ABSURD:g}")]
        if not large and (num_large := _num_over(sample, _LARGE)):
            seen = f"{path}: {num_large:,} of {sample.values.size:,} sampled values of {sample.name[:200]!r} are above "
            large = [LARGE.finding(f"{seen}{_LARGE:,.0f}")]
        if time.monotonic() > limit:
            break
    return large


def _num_over(sample: Sample, limit: float) -> int:
    """How many values are not below the limit, whatever their sign; infinite ones and NaN are not. Without their sign
    floats are in the order of their bits.
    """
    bits = np.dtype(f"u{sample.values.itemsize}").type
    if sample.kind == "BF16":  # the upper half of a float32
        least = int(np.float32(limit).view(np.uint32)) >> 16
    else:
        with np.errstate(over="ignore"):  # in F16 it is infinite
            least = int(np.dtype(f"f{sample.values.itemsize}").type(limit).view(bits))
    unsigned = sample.values.view(bits) & bits((1 << 8 * sample.values.itemsize - 1) - 1)
    return int(np.count_nonzero(unsigned >= bits(least)))


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
