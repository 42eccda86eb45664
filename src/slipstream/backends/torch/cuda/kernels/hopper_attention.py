"""HopperAttention: launches hopper_attention.cu, attention for long queries, where a GPU and a model have it."""

from __future__ import annotations

import ctypes
import logging
import math

import torch

from slipstream.backends.torch.cuda.kernels.nvrtc import HOPPER, Kernel, NvrtcError, cached_cubin, is_hopper, tensor_map
from slipstream.models.config import DecoderConfig

log = logging.getLogger("slipstream")

_ROWS, _KEYS, _THREADS = 128, 128, 384  # of a block, of a tile, and of a block again
_STAGES = 2  # a third gained nothing
_BLOCK_SIZE = 4  # fields of a block
_PANEL = 64  # columns that stand together in shared memory
_HEAD_DIMS = (64, 128)
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int


class _CPrompt(ctypes.Structure):
    """`struct Task` of hopper_attention.cu."""

    _fields_ = [
        *((name, _POINTER) for name in ("queries", "out", "blocks")),
        *((name, _INT) for name in ("query_stride", "heads")),
        ("scale", ctypes.c_float),
    ]


class HopperAttention:
    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        """Raises NvrtcError."""
        self._config = config
        group = config.num_heads // config.num_kv_heads
        self.rows_a_block = _ROWS // group
        self._scale = config.head_dim**-0.5 / math.log(2)  # of the scores, for powers of two
        half = int(dtype == torch.float16)
        defines = {"HEAD_DIM": config.head_dim, "GROUP": group, "STAGES": _STAGES, "FLOAT16": half}
        self._kernel = Kernel(cached_cubin("hopper_attention", HOPPER, defines), "hopper_attention")
        tiles = (_ROWS + 2 * _STAGES * _KEYS) * config.head_dim * dtype.itemsize
        self._shared_bytes = tiles + 4 * _STAGES * 8 + 1024  # barriers, and tiles begin at a multiple of 1024

    @classmethod
    def for_model(cls, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> HopperAttention | None:
        """None where this GPU or this model has no such kernel."""
        if not is_hopper(device):
            return None
        fits = config.head_dim in _HEAD_DIMS and config.num_heads // config.num_kv_heads <= _ROWS
        if not fits or config.sliding_window or dtype not in (torch.bfloat16, torch.float16):
            return None
        try:
            return cls(config, dtype)
        except NvrtcError as error:
            log.warning("prompts are read with a slower kernel, 5 %% slower at 16,384 tokens: %s", error)
            return None

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, blocks: torch.Tensor, out: torch.Tensor
    ) -> None:
        """`keys`, `values` [cells, kv_heads * head_dim]; `blocks` as of `prompt_attend_kernel`."""
        config, panels = self._config, self._config.head_dim // _PANEL
        pointers = (tensor.data_ptr() for tensor in (queries, out, blocks))
        task = _CPrompt(*pointers, queries.shape[1], config.num_heads, self._scale)
        both = [tensor_map(tensor, (_KEYS, _PANEL), panels) for tensor in (keys, values)]
        grid = (len(blocks) // _BLOCK_SIZE, config.num_kv_heads)
        self._kernel.launch(grid, _THREADS, (*both, task), self._shared_bytes)
