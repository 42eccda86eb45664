"""Kernels that start while the one before them still runs (programmatic dependent launch).

What a kernel does before `wait_for_last_kernel` overlaps with that one, and must not read what it writes. The next one
may start from `start_next_kernel` on.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_FIRST_CAPABILITY = (9, 0)


def can_start_early(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and torch.version.cuda is not None  # ROCm's devices have that type too
        and torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY
        and hasattr(tl.extra.cuda, "gdc_wait")
    )


def launch_options(early: bool) -> dict[str, bool]:
    """What a launch needs besides, in Triton. Backends other than CUDA's don't know the option."""
    return {"launch_pdl": True} if early else {}


@triton.jit
def wait_for_last_kernel(EARLY: tl.constexpr):
    if EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def start_next_kernel(EARLY: tl.constexpr):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
