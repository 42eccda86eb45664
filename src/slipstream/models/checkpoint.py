"""Checkpoint: an opened model on disk. Headers are read and checked; tensors stay on disk until they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from slipstream.models.config import DecoderConfig
from slipstream.models.quantised import Fp8Tensor, QuantFormat, QuantisedTensor
from slipstream.models.text.tokenizer import Tokenizer

FloatKind = Literal["F32", "F16", "BF16"]


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor as host memory. numpy has no BF16 type, so its bits are stored as uint16."""

    kind: FloatKind
    data: npt.NDArray[np.generic]  # the tensor's shape, row-major; float32, float16 or uint16
    repeated_to: tuple[int, ...] | None = None  # the tensor is `data` repeated until this shape is full


class Checkpoint(Protocol):
    """Tensor names are those of the HF checkpoints in both formats: `model.layers.0.self_attn.q_proj.weight`."""

    name: str  # short, for tables
    path: Path
    config: DecoderConfig
    tokenizer: Tokenizer

    def __contains__(self, tensor_name: str) -> bool: ...

    def tensor(self, tensor_name: str) -> RawTensor:
        """Reads one tensor, in the layout HF uses (GGUF's permuted rotary rows are restored). Keeps no copy."""
        ...

    def quant_format(self, tensor_name: str) -> QuantFormat | None:
        """How the codes of a tensor are put together; None if `quantised` gives None."""
        ...

    def quantised(self, tensor_name: str) -> QuantisedTensor | None:
        """The same tensor as its codes and scales; None if it is stored as floats, or in a way without them."""
        ...

    def fp8(self, tensor_name: str) -> Fp8Tensor | None:
        """The same tensor in FP8 with a scale for each output; None if it is stored in another way. Reads no codes."""
        ...

    def release_pages(self) -> None:
        """Gives back the memory of what was read of the files. They can still be read."""
        ...

    def weight_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        ...


class FloatsInMemory:
    """What a Checkpoint says that has no codes and no files to read from."""

    def quant_format(self, tensor_name: str) -> QuantFormat | None:
        return None

    def quantised(self, tensor_name: str) -> QuantisedTensor | None:
        return None

    def fp8(self, tensor_name: str) -> Fp8Tensor | None:
        return None

    def release_pages(self) -> None:
        pass
