"""NativeOps: the decoder's steps through the compiled CPU kernels. Batch-invariant; activations are float32."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import torch

from slipstream.backends.torch.batch import Batch
from slipstream.backends.torch.ops import LayerCache, Linear, Norm, QKNorm, RopeTable, SmallSteps
from slipstream.errors import UsageError
from slipstream.models.config import DecoderConfig

_BLOCK = 16  # as in kernels.c
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


_INDEX_FIELDS = ("position", "cell", "sequence", "prefix", "extra_from", "extra", "pages")


class _CBatch(ctypes.Structure):
    """`struct batch` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _INDEX_FIELDS),
        *((name, ctypes.c_int64) for name in ("rows", "max_pages", "page_size")),
    ]


class NativeOps(SmallSteps[Batch]):
    name = "native"
    activation_dtype = torch.float32
    batch_invariant = True

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        if dtype == torch.float16 and not library.slip_has_f16():
            raise UsageError("dtype fp16: the C compiler has no half-precision type here; use fp32 or bf16")
        self._lib = library
        self._dtype = dtype
        self._threads = torch.get_num_threads()
        library.slip_set_threads(self._threads)
        self._scratch = torch.empty(0)
        self._batch: tuple[Batch, _CBatch] | None = None

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """[outputs / 16][inputs][16], the last block filled up with zeros."""
        outputs, inputs = weight.shape
        blocks = -(-outputs // _BLOCK)
        packed = torch.empty(blocks, inputs, _BLOCK, dtype=self._dtype)
        whole = outputs // _BLOCK
        packed[:whole].copy_(weight[: whole * _BLOCK].view(whole, _BLOCK, inputs).transpose(1, 2))
        if whole < blocks:
            packed[whole:].zero_()
            packed[whole, :, : outputs - whole * _BLOCK].copy_(weight[whole * _BLOCK :].T)
        return Linear(packed, outputs, inputs, None if bias is None else bias.float().contiguous())

    def first_outputs(self, weight: Linear, count: int) -> Linear:
        return replace(weight, data=weight.data[: count // _BLOCK], outputs=count)

    def lookup(self, table: Linear, tokens: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(tokens), table.inputs)
        self._lib.slip_embed(
            table.data.data_ptr(), _KINDS[self._dtype], tokens.data_ptr(), len(tokens), table.inputs, out.data_ptr()
        )
        return out

    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        out = torch.empty_like(x)
        self._lib.slip_rms_norm(x.data_ptr(), norm.gain.data_ptr(), norm.eps, x.shape[0], x.shape[1], out.data_ptr())
        return out

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        out = torch.empty(x.shape[0], weight.outputs)
        self._linear(x, weight, 0, out)
        return out

    def linear_add(self, x: torch.Tensor, weight: Linear, residual: torch.Tensor) -> None:
        self._linear(x, weight, 1, residual)

    def _linear(self, x: torch.Tensor, weight: Linear, add: int, out: torch.Tensor) -> None:
        bias = weight.bias.data_ptr() if weight.bias is not None else None
        self._lib.slip_linear(
            weight.data.data_ptr(), _KINDS[self._dtype], x.data_ptr(), x.shape[0], weight.inputs, weight.outputs,
            bias, add, out.data_ptr(),
        )  # fmt: skip

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, width = gate_up.shape
        out = torch.empty(rows, width // 2)
        self._lib.slip_swiglu(gate_up.data_ptr(), rows, width // 2, out.data_ptr())
        return out

    def rope_write(
        self,
        qkv: torch.Tensor,
        batch: Batch,
        config: DecoderConfig,
        rope: RopeTable,
        norm: QKNorm | None,
        cache: LayerCache,
    ) -> None:
        q_norm, k_norm = (norm.query.data_ptr(), norm.key.data_ptr()) if norm else (None, None)
        self._lib.slip_rope_write(
            self._c_batch(batch), qkv.data_ptr(), config.num_heads, config.num_kv_heads, config.head_dim,
            rope.cosine.data_ptr(), rope.sine.data_ptr(), q_norm, k_norm, config.norm_eps,
            cache.keys.data_ptr(), cache.values.data_ptr(),
        )  # fmt: skip

    def attend(self, qkv: torch.Tensor, batch: Batch, config: DecoderConfig, cache: LayerCache) -> torch.Tensor:
        out = torch.empty(len(qkv), config.num_heads * config.head_dim)
        max_keys = -(-batch.max_keys // _BLOCK) * _BLOCK
        if len(self._scratch) < self._threads * 2 * max_keys:
            self._scratch = torch.empty(self._threads * 4 * max_keys)
        self._lib.slip_attend(
            self._c_batch(batch), qkv.data_ptr(), config.num_heads, config.num_kv_heads, config.head_dim,
            config.sliding_window or 0, cache.keys.data_ptr(), cache.values.data_ptr(),
            max_keys, self._threads, self._scratch.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        return out

    def _c_batch(self, batch: Batch) -> ctypes.c_void_p:
        """The C view of a batch, made once for all layers of a forward."""
        if self._batch is None or self._batch[0] is not batch:
            view = _CBatch(
                *(getattr(batch, name).data_ptr() for name in _INDEX_FIELDS),
                batch.num_rows, batch.pages.shape[1], batch.page_size,
            )  # fmt: skip
            self._batch = (batch, view)
        return ctypes.cast(ctypes.byref(self._batch[1]), ctypes.c_void_p)
