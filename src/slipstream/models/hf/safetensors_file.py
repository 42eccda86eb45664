"""One .safetensors file: its header, checked against the file's size. Tensors are views of the memory map.

Does not use the safetensors package, because its numpy interface has no bfloat16.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.checkpoint import RawTensor
from slipstream.models.files import map_file, parse_object

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own implementation
MAX_HEADER_VALUES = 2_000_000  # about 250,000 tensors; the largest checkpoints have 100,000 in many files
LENGTH_BYTES = 8

ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
}
FLOATS = ("F32", "F16", "BF16", "F64")
INTEGERS = {"I64": np.int64, "I32": np.int32, "U8": np.uint8, "BOOL": np.uint8}
_MAX_DIMENSIONS = 16


@dataclass(frozen=True, slots=True)
class StoredTensor:
    data: mmap.mmap
    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # from the start of the file

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def items(self, kind: npt.DTypeLike) -> npt.NDArray[Any]:
        """The stored items as numbers of this kind, without copying. The array is read-only."""
        return np.frombuffer(self.data, kind, math.prod(self.shape), self.start).reshape(self.shape)

    def read(self) -> RawTensor:
        """The tensor without copying (float64 becomes float32). The array is read-only."""
        if self.dtype == "F32":
            return RawTensor("F32", self.items(np.float32))
        if self.dtype == "F16":
            return RawTensor("F16", self.items(np.float16))
        if self.dtype == "BF16":
            return RawTensor("BF16", self.items(np.uint16))
        return RawTensor("F32", self.items(np.float64).astype(np.float32))

    def read_integers(self) -> npt.NDArray[np.int64]:
        """A copy of a tensor of whole numbers or flags. Raises UnsupportedModelError for another type."""
        if self.dtype not in INTEGERS:
            raise UnsupportedModelError(
                f"{self.path}: the tensor {self.name!r} is stored as {self.dtype}; expected {', '.join(INTEGERS)}."
            )
        return self.items(INTEGERS[self.dtype]).astype(np.int64)

    def check_float(self) -> None:
        if self.dtype not in FLOATS:
            raise UnsupportedModelError(
                f"{self.path}: the tensor {self.name!r} is stored as {self.dtype}; "
                f"{', '.join(FLOATS)} are supported. Use an unquantised checkpoint, or a GGUF file."
            )


def read_file_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name. Raises ModelError subclasses only."""
    data = map_file(path)
    header_bytes = _header_length(path, data)
    body = LENGTH_BYTES + header_bytes
    header = parse_header(path, data[LENGTH_BYTES:body])
    return {name: _stored_tensor(path, data, body, name, entry) for name, entry in header.items()}


def parse_header(path: Path, data: bytes) -> dict[str, Any]:
    """The description of each tensor by name, not yet checked. Raises DamagedModelError."""
    header = parse_object(data, f"The header of {path}", MAX_HEADER_VALUES, unique=True)
    if data[:1] != b"{" or data[1:2] == b"\0":  # JSON of other encodings, which the format does not allow
        raise DamagedModelError(f"The header of {path} begins with {data[:8]!r}; expected '{{'. Download it again.")
    header.pop("__metadata__", None)
    return header


def _header_length(path: Path, data: mmap.mmap) -> int:
    if len(data) < LENGTH_BYTES:
        raise DamagedModelError(f"{path} has only {len(data)} bytes, too few for safetensors. Download it again.")
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if length > min(MAX_HEADER_BYTES, len(data) - LENGTH_BYTES):
        raise DamagedModelError(
            f"{path} has a header of {length} bytes in a file of {len(data)}: it is truncated or not safetensors. "
            "Download it again."
        )
    return length


def _stored_tensor(path: Path, data: mmap.mmap, body: int, name: str, entry: Any) -> StoredTensor:
    def damaged(what: str) -> NoReturn:
        raise DamagedModelError(f"{path}: the tensor {name!r} {what}. Download the file again.")

    if not isinstance(entry, dict):
        damaged("has no description")
    fields: dict[str, Any] = entry
    dtype, shape, offsets = (fields.get(key, "missing") for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        damaged(f"has the unknown type {dtype!r}")
    if not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2:
        damaged(f"has the shape {str(shape)[:80]} and the offsets {str(offsets)[:80]}, which are invalid")
    tensor = StoredTensor(data, path, name, dtype, tuple(shape), body + offsets[0])
    if offsets[1] - offsets[0] != tensor.num_bytes:
        span = offsets[1] - offsets[0]
        damaged(f"of shape {tensor.shape} as {dtype} needs {tensor.num_bytes} bytes and has {span}")
    if body + offsets[1] > len(data):
        damaged(f"ends at byte {body + offsets[1]}, but the file has {len(data)}: it is truncated")
    return tensor


def _is_sizes(value: Any) -> bool:
    """Few and below 2^63: the product of larger numbers would only take time."""
    return (
        isinstance(value, list)
        and len(value) <= _MAX_DIMENSIONS
        and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
    )
