"""Tensor data of a GGUF file -> RawTensor. Half precision is kept; quantised blocks become float32."""

from __future__ import annotations

import functools
import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.checkpoint import RawTensor
from slipstream.models.gguf.header import GgufHeader, TensorInfo

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

F32, F16, BF16, F64 = 0, 1, 30, 28  # ggml type ids that need no dequantising
CHUNK_ELEMENTS = 1 << 18  # elements dequantised at once per thread: limits temporary arrays to about 10 MB each
LINE_ELEMENTS = 16384  # gguf works on 16 lines at a time; 16 x 16384 float32 stay in the cache of one core
MAX_THREADS = min(8, os.cpu_count() or 1)


@functools.cache
def block_sizes() -> dict[int, tuple[int, int]]:
    """ggml type id -> (elements, bytes) of one block, for every type that can be converted to floats."""
    import gguf

    plain = {F32, F16, BF16, F64}
    return {
        int(kind): sizes
        for kind, sizes in gguf.constants.GGML_QUANT_SIZES.items()
        if int(kind) in plain or kind in gguf.quants._type_traits
    }


@functools.cache
def type_names() -> dict[int, str]:
    """The names of the known tensor types by id."""
    import gguf

    return {int(kind): kind.name for kind in gguf.GGMLQuantizationType}


def check_storage(header: GgufHeader, info: TensorInfo) -> int:
    """The stored bytes of a tensor. Raises if its type is unknown or its data ends after the file."""
    sizes = block_sizes().get(info.type_id)
    if sizes is None:
        stored_as = type_names().get(info.type_id, f"type {info.type_id}")
        raise UnsupportedModelError(
            f"{header.path}: the tensor {info.name!r} is stored as {stored_as}, "
            "which can't be dequantised here. Use another quantisation of this model, such as Q4_K_M or Q8_0."
        )
    block_elements, block_bytes = sizes
    if info.shape[-1] % block_elements:
        raise DamagedModelError(
            f"{header.path}: rows of the tensor {info.name!r} have {info.shape[-1]} elements; expected a multiple of "
            f"{block_elements}."
        )
    num_bytes = math.prod(info.shape) // block_elements * block_bytes
    if info.offset + num_bytes > len(header.data):
        raise DamagedModelError(
            f"{header.path} is truncated: the tensor {info.name!r} ends at byte {info.offset + num_bytes}, but the "
            f"file has only {len(header.data)}. Download it again."
        )
    return num_bytes


def read_rows(header: GgufHeader, info: TensorInfo) -> Bytes:
    """A tensor's stored bytes as [rows, bytes of a row], without copying."""
    num_bytes = check_storage(header, info)
    flat = np.frombuffer(header.data, np.uint8, num_bytes, info.offset)
    return flat.reshape(math.prod(info.shape[:-1]), -1)


def to_raw_tensor(rows: Bytes, shape: tuple[int, ...], type_id: int) -> RawTensor:
    """Stored rows -> floats of the given shape."""
    if type_id == F32:
        return RawTensor("F32", rows.view(np.float32).reshape(shape))
    if type_id == F16:
        return RawTensor("F16", rows.view(np.float16).reshape(shape))
    if type_id == BF16:
        return RawTensor("BF16", rows.view(np.uint16).reshape(shape))
    if type_id == F64:
        return RawTensor("F32", rows.view(np.float64).astype(np.float32).reshape(shape))
    return RawTensor("F32", _dequantise(rows, type_id).reshape(shape))


def _dequantise(rows: Bytes, type_id: int) -> Floats:
    """Blocks do not depend on rows: they are split into chunks, one per thread (numpy releases the GIL)."""
    block_elements, block_bytes = block_sizes()[type_id]
    blocks = rows.reshape(-1, block_bytes)
    out = np.empty((len(blocks), block_elements), np.float32)
    chunk = CHUNK_ELEMENTS // block_elements
    starts = range(0, len(blocks), chunk)

    def fill(start: int) -> None:
        _fill(blocks[start : start + chunk], out[start : start + chunk], type_id)

    if len(starts) == 1:
        fill(0)
        return out
    with ThreadPoolExecutor(min(len(starts), MAX_THREADS)) as threads:
        list(threads.map(fill, starts))
    return out


def _fill(blocks: Bytes, out: Floats, type_id: int) -> None:
    """Dequantises into `out`. gguf processes 16 lines at a time, so lines of one block would be mostly overhead."""
    import gguf

    kind = gguf.GGMLQuantizationType(type_id)
    block_elements, block_bytes = block_sizes()[type_id]
    width = LINE_ELEMENTS // block_elements
    even = len(blocks) // width * width
    if even:
        lines = blocks[:even].reshape(-1, width * block_bytes)
        out[:even] = gguf.quants.dequantize(lines, kind).reshape(-1, block_elements)
    if even < len(blocks):
        out[even:] = gguf.quants.dequantize(blocks[even:], kind)
