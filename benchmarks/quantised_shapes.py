"""Random quantised weights in the shapes of well-known models: FP8, and the mix that llama.cpp calls Q4_K_M."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import torch

from slipstream.backends.torch.cuda import quantised_ops
from slipstream.backends.torch.cuda.kernels import fp8
from slipstream.backends.torch.cuda.kernels.quantised_layout import CodedPart, pack_part
from slipstream.models.gguf.blocks import BLOCK_KINDS, BlockKind
from slipstream.models.quantised import Fp8Tensor, QuantFormat, QuantisedRows, QuantisedTensor
from slipstream.models.shapes import RandomCheckpoint

_Q4_K, _Q6_K = BLOCK_KINDS[12], BLOCK_KINDS[14]
_SCALES = {12: (0, 2), 14: (208,)}  # where a block has its half-precision numbers
_BLOCKS = 4096  # random blocks, repeated


class QuantisedShape(RandomCheckpoint):
    """A Checkpoint of a known shape in Q4_K_M."""

    def __init__(self, shape: str) -> None:
        super().__init__(shape)
        self.name += "-q4_k_m"
        self._blocks = {kind.type_id: _random_blocks(kind) for kind in (_Q4_K, _Q6_K)}

    def quant_format(self, tensor_name: str) -> QuantFormat | None:
        return self._kind(tensor_name).format if len(self._shapes[tensor_name]) == 2 else None

    def quantised(self, tensor_name: str) -> QuantisedTensor | None:
        shape = self._shapes[tensor_name]
        if len(shape) != 2:
            return None
        kind = self._kind(tensor_name)
        blocks, per_row = self._blocks[kind.type_id], shape[1] // kind.block_inputs

        def rows(start: int, stop: int) -> QuantisedRows:
            stored = blocks[np.arange(start * per_row, stop * per_row) % _BLOCKS]
            return kind.tensor(stored.reshape(stop - start, -1)).rows(0, stop - start)

        return QuantisedTensor(kind.format, (shape[0], shape[1]), rows)

    def _kind(self, tensor_name: str) -> BlockKind:
        if tensor_name == "lm_head.weight":
            return _Q6_K
        if not tensor_name.endswith(("v_proj.weight", "down_proj.weight")):
            return _Q4_K
        layer, eighth = int(tensor_name.split(".")[2]), self.config.num_layers // 8
        is_fine = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        return _Q6_K if is_fine else _Q4_K


class Fp8Shape(RandomCheckpoint):
    """A Checkpoint of a known shape whose layers are in FP8, with a scale for each output."""

    def __init__(self, shape: str) -> None:
        super().__init__(shape)
        self.name += "-fp8"
        rng = np.random.default_rng(0)
        self._codes = rng.integers(0, 127, 1 << 20, np.uint8) | rng.integers(0, 2, 1 << 20, np.uint8) << 7

    def fp8(self, tensor_name: str) -> Fp8Tensor | None:  # type: ignore[override]
        if not tensor_name.endswith("_proj.weight"):
            return None
        outputs, inputs = self._shapes[tensor_name]
        codes = np.broadcast_to(np.resize(self._codes, inputs), (outputs, inputs))
        return Fp8Tensor(tensor_name, codes, np.full(outputs, 1.5e-4, np.float32))


def _random_blocks(kind: BlockKind) -> np.ndarray:
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (_BLOCKS, kind.block_bytes), dtype=np.uint8)
    for at in _SCALES[kind.type_id]:
        scales = rng.uniform(0, 4e-5, _BLOCKS).astype(np.float16)
        blocks[:, at : at + 2] = scales.reshape(-1, 1).view(np.uint8)
    return blocks


@contextmanager
def packed_once() -> Iterator[None]:
    """Matrices of one shape and type are packed once and then copied, so that large models take seconds to make."""
    known: dict[tuple[object, ...], CodedPart] = {}

    def copied(weight: QuantisedTensor, device: torch.device) -> CodedPart:
        key = (weight.format, weight.shape)
        if key not in known:
            known[key] = pack_part(weight, device)
        return replace(known[key], records=known[key].records.clone())

    words: dict[tuple[int, int], torch.Tensor] = {}
    pack_words = fp8._words

    def copied_words(part: Fp8Tensor, device: torch.device) -> torch.Tensor:
        if part.shape not in words:
            words[part.shape] = pack_words(part, device)
        return words[part.shape].clone()

    with mock.patch.object(quantised_ops, "pack_part", copied), mock.patch.object(fp8, "_words", copied_words):
        yield
