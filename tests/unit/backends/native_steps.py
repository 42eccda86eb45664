"""NativeSteps: the C kernels' steps of a layer, one at a time. The product runs them inside of whole layers."""

from __future__ import annotations

import ctypes

import torch

from slipstream.backends.torch.batch import Batch
from slipstream.backends.torch.cpu.ops import NativeOps, _c_attention, _c_rows, _native
from slipstream.backends.torch.ops import LayerCache, Linear, QKNorm, RopeTable
from slipstream.models.config import DecoderConfig


class NativeSteps(NativeOps):
    """As `ReferenceOps` has them."""

    def linear_add(self, x: torch.Tensor, weight: Linear, residual: torch.Tensor) -> None:
        """Adds linear(x) to the residual stream, in place."""
        self._call(self._lib.slip_linear, _native(weight).address, x.data_ptr(), x.shape[0], 1, residual.data_ptr())

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, width = gate_up.shape
        out = torch.empty(rows, width // 2)
        self._lib.slip_swiglu(gate_up.data_ptr(), rows, width // 2, out.data_ptr())
        return out

    def rope_write(
        self, qkv: torch.Tensor, batch: Batch, config: DecoderConfig, rope: RopeTable, norm: QKNorm | None,
        cache: LayerCache,
    ) -> None:  # fmt: skip
        attention = _c_attention(config, rope, norm, cache)
        self._lib.slip_rope_write(ctypes.byref(attention), ctypes.byref(_c_rows(batch)), qkv.data_ptr())

    def attend(self, qkv: torch.Tensor, batch: Batch, config: DecoderConfig, cache: LayerCache) -> torch.Tensor:
        out, unread = torch.empty(len(qkv), config.num_heads * config.head_dim), torch.empty(0)
        attention, rows = _c_attention(config, RopeTable(unread, unread), None, cache), _c_rows(batch)
        self._call(self._lib.slip_attend, ctypes.byref(attention), ctypes.byref(rows), qkv.data_ptr(), out.data_ptr())
        return out
