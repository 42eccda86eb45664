"""Keys and values in 8 bits: a vector is its codes, and behind them a scale for each 32 of them.

So a cache of codes is one tensor, as a cache of floats is: cells are copied and shared in the same way.
"""

from __future__ import annotations

import torch

TOGETHER = 32  # numbers that share a scale
_ALIGNED_TO = 16  # bytes, for the wide loads of GPUs


def vector_width(head_dim: int, dtype: torch.dtype) -> int:
    """Items of a vector in a cache of this dtype; int8 stands for codes."""
    if dtype != torch.int8:
        return head_dim
    return -(-(head_dim + 4 * (head_dim // TOGETHER)) // _ALIGNED_TO) * _ALIGNED_TO


def is_coded(cache: torch.Tensor) -> bool:
    return cache.dtype == torch.int8


def write_cells(cache: torch.Tensor, cells: torch.Tensor, vectors: torch.Tensor) -> None:
    """Puts vectors [rows, kv_heads, head_dim] into cells of a cache."""
    cache[cells] = _encoded(vectors, cache.shape[-1]) if is_coded(cache) else vectors.to(cache.dtype)


def read_cells(cache: torch.Tensor, cells: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Vectors [cells, kv_heads, head_dim], as floats."""
    return decoded(cache[cells], head_dim)


def decoded(found: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Vectors [..., head_dim] of a cache, decoded to floats; those of a cache of floats as they are."""
    if not is_coded(found):
        return found
    scales = found[..., head_dim : head_dim + 4 * (head_dim // TOGETHER)].contiguous().view(torch.float32)
    return found[..., :head_dim].float() * scales.repeat_interleave(TOGETHER, dim=-1)


def _encoded(vectors: torch.Tensor, width: int) -> torch.Tensor:
    """The largest of a group is code 127 or -127. A number that is not finite makes the scale NaN."""
    groups = vectors.float().view(*vectors.shape[:-1], -1, TOGETHER)
    top = groups.abs().amax(-1, keepdim=True)
    codes = (groups * (127 / top)).round().nan_to_num(0).to(torch.int8).flatten(-2)
    scales = (top / 127 + (groups * 0).sum(-1, keepdim=True)).flatten(-2).contiguous().view(torch.int8)
    filled = torch.zeros(*vectors.shape[:-1], width, dtype=torch.int8, device=vectors.device)
    filled[..., : codes.shape[-1]] = codes
    filled[..., codes.shape[-1] : codes.shape[-1] + scales.shape[-1]] = scales
    return filled
