"""MemoryPlan: the memory that a model needs on a device, computed before allocation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from slipstream.backends.torch.coded_cache import vector_width
from slipstream.backends.torch.kv_pool import PAGE_SIZE
from slipstream.errors import CapacityError
from slipstream.host import free_memory, ignores_memory
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.config import DecoderConfig
from slipstream.models.quantised import QuantFormat
from slipstream.models.tensors import EMBEDDING, Shape, expected_tensors

_STREAMS = 32  # a typical load, in addition to one stream of the whole context
_TOKENS_A_STREAM = 1024
_GPU_WORKSPACE = 1100 << 20  # scratch of the kernels, buffers, and graphs with their logits
_ROWS = {"cpu": 512, "cuda": 8192}  # most rows of a forward: more make it no faster
_LEAST_ROWS = 512
# Most rows of a captured forward; its graph keeps memory for them. With an 8B they take 45 ms, and the host took 14 to
# 26 ms to start all kernels: with more rows the host is ahead of the device without a graph.
CAPTURED_ROWS = 2048
_ACTIVATIONS_SHARE = 0.02  # of free memory, for the rows of a forward
_CACHE_SHARE = {
    "cpu": 0.25,
    "cuda": 0.5,
}  # share of free memory for keys and values: a draft may be loaded next
_GB = 1e9


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    name: str
    weight_bytes: int
    token_bytes: int  # keys and values of one token
    kv_tokens: int
    workspace_bytes: int
    free_bytes: int
    max_rows: int  # of a forward

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_tokens * self.token_bytes + self.workspace_bytes

    def text(self) -> str:
        return (
            f"{self.name}: weights {self.weight_bytes / _GB:.1f} GB, keys and values of {self.kv_tokens} tokens "
            f"{self.kv_tokens * self.token_bytes / _GB:.1f} GB, graphs and scratch "
            f"{self.workspace_bytes / _GB:.1f} GB; {self.free_bytes / _GB:.1f} GB were free"
        )


def weight_bytes(checkpoint: Checkpoint, item_bytes: int, keeps_codes: bool, device: torch.device) -> int:
    """Bytes of all weights when they are loaded, without padding at the ends of blocks."""
    total = 0
    for name, shape in expected_tensors(checkpoint.config).items():
        form = checkpoint.quant_format(name) if keeps_codes else None
        total += _coded_bytes(form, shape, device) if form else item_bytes * math.prod(shape)
    return total


def fp8_bytes(checkpoint: Checkpoint, item_bytes: int) -> int:
    """The same where weights in FP8 stay as they are."""
    total = 0
    for name, shape in expected_tensors(checkpoint.config).items():
        stored = checkpoint.fp8(name) if name != EMBEDDING else None
        total += stored.num_bytes if stored else item_bytes * math.prod(shape)
    return total


def _coded_bytes(form: QuantFormat, shape: Shape, device: torch.device) -> int:
    if device.type == "cpu":
        return form.stored_bytes(math.prod(shape))
    from slipstream.backends.torch.cuda.kernels.quantised_layout import stored_bytes

    return stored_bytes(form, (shape[0], shape[1]))


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """How keys and values are stored, and of how many tokens."""

    dtype: torch.dtype  # int8: codes
    num_tokens: int | None = None  # None: as many as fit

    def token_bytes(self, config: DecoderConfig) -> int:
        vector_bytes = vector_width(config.head_dim, self.dtype) * self.dtype.itemsize
        return 2 * config.num_layers * config.num_kv_heads * vector_bytes


def plan_memory(
    checkpoint: Checkpoint, weights: int, item_bytes: int, context: int, cache: CacheNeed, device: torch.device
) -> MemoryPlan:
    """The cache gets a share of what the weights leave. Raises CapacityError if they don't fit.

    `item_bytes`: of an activation.
    """
    config = checkpoint.config
    token_bytes = cache.token_bytes(config)
    free = free_bytes(device)
    rows = _affordable_rows(config, item_bytes, free, device)
    captured = min(rows, CAPTURED_ROWS)
    workspace = _GPU_WORKSPACE + (rows + captured) * _row_bytes(config, item_bytes) if device.type == "cuda" else 0
    left = max(free - workspace - weights, 0)
    wanted = max(context, _STREAMS * _TOKENS_A_STREAM) + PAGE_SIZE * _STREAMS
    affordable = int(left * _CACHE_SHARE[device.type]) // token_bytes
    tokens = cache.num_tokens or max(min(wanted, affordable), 2 * PAGE_SIZE)
    plan = MemoryPlan(
        checkpoint.name, weights, token_bytes, tokens, workspace, free, min(rows, max(tokens, _LEAST_ROWS))
    )
    if plan.total_bytes > free and not ignores_memory():
        raise CapacityError(_refusal(plan, device))
    return plan


def _affordable_rows(config: DecoderConfig, item_bytes: int, free: int, device: torch.device) -> int:
    rows = _ROWS[device.type]
    while rows > _LEAST_ROWS and rows * _row_bytes(config, item_bytes) > _ACTIVATIONS_SHARE * free:
        rows //= 2
    return rows


def _row_bytes(config: DecoderConfig, item_bytes: int) -> int:
    """Activations of one row of a forward, at most: residual stream, its norm, gates, ups, and their product."""
    return (2 * config.hidden_size + 3 * config.intermediate_size) * item_bytes


@contextmanager
def explained(plan: MemoryPlan, device: torch.device) -> Iterator[None]:
    """Turns an out-of-memory error of the device into one clear message, with the plan."""
    try:
        yield
    except (torch.cuda.OutOfMemoryError, MemoryError) as error:
        raise CapacityError(_refusal(plan, device)) from error


def _refusal(plan: MemoryPlan, device: torch.device) -> str:
    on_gpu = ", stop other programs on the GPU (nvidia-smi lists them), or use --device cpu"
    return (
        f"{device} has too little memory. {plan.text()}. Lower --context or the tokens of the cache, or use a smaller "
        f"model, a smaller draft or no draft{on_gpu if device.type == 'cuda' else ''}"
    )


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_memory()
