"""Writes model.safetensors of a checkpoint tensor by tensor, so it needs memory for only one tensor."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from slipstream.models.checkpoint import Checkpoint, RawTensor
from slipstream.models.config import DecoderConfig
from slipstream.models.hf.safetensors_file import ITEM_BYTES
from slipstream.models.tensors import expected_tensors

StoredKind = Literal["bf16", "fp32"]
ALIGNMENT = 8  # of the header, so that tensors start at a multiple of their items
ROWS_AT_ONCE = 1 << 14  # limits the temporary arrays when rounding a large embedding


@dataclass(frozen=True, slots=True)
class Stored:
    """The names of a type in safetensors and in config.json, and how to convert a tensor to it."""

    dtype: str
    torch_name: str
    item_bytes: int
    convert: Callable[[RawTensor], npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What the header says of a tensor; `dtype` by its name in safetensors."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def weight_bytes(config: DecoderConfig, kind: StoredKind) -> int:
    """Bytes that all tensors take in the file."""
    return sum(math.prod(shape) for shape in expected_tensors(config).values()) * STORED_AS[kind].item_bytes


def write_weights(checkpoint: Checkpoint, path: Path, kind: StoredKind) -> int:
    """Writes every tensor that the decoder needs, and returns how many there are. Raises OSError."""
    stored, shapes = STORED_AS[kind], expected_tensors(checkpoint.config)
    specs = {name: TensorSpec(stored.dtype, shape) for name, shape in shapes.items()}
    write_tensors(path, specs, lambda name: stored.convert(checkpoint.tensor(name)))
    return len(shapes)


def write_tensors(
    path: Path, specs: Mapping[str, TensorSpec], values_of: Callable[[str], npt.NDArray[np.generic]]
) -> None:
    """Writes one .safetensors file. Each tensor is asked for when it is written. Raises OSError."""
    with path.open("wb") as file:
        file.write(_header(specs))
        for name, spec in specs.items():
            values = values_of(name)
            assert values.shape == spec.shape and values.nbytes == spec.num_bytes, name
            file.write(np.ascontiguousarray(values).data)
        file.flush()
        os.fsync(file.fileno())


def _header(specs: Mapping[str, TensorSpec]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers requires it
    end = 0
    for name, spec in specs.items():
        start, end = end, end + spec.num_bytes
        entries[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def floats(tensor: RawTensor) -> npt.NDArray[np.float32]:
    if tensor.kind == "BF16":
        return (tensor.data.astype(np.uint32) << 16).view(np.float32)
    return tensor.data.astype(np.float32, copy=False)


def _brain_floats(tensor: RawTensor) -> npt.NDArray[np.uint16]:
    if tensor.kind == "BF16":
        return tensor.data.astype(np.uint16, copy=False)
    rounded = np.empty(tensor.data.shape, np.uint16)
    for start in range(0, len(rounded), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        rounded[part] = _round(tensor.data[part].astype(np.float32))
    return rounded


def _round(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounds to nearest, ties to even. NaN would round to infinity, so it keeps its upper bits."""
    bits = values.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, nearest).astype(np.uint16)


STORED_AS: dict[StoredKind, Stored] = {
    "bf16": Stored("BF16", "bfloat16", 2, _brain_floats),
    "fp32": Stored("F32", "float32", 4, floats),
}
