"""What machine this is, and how fast it copies memory: the yardstick for decoding."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from slipstream.bench.results import Machine

_COPY_BYTES = 256 << 20
_PACKAGES = ("slipstream", "torch", "numpy", "tokenizers", "gguf")


def describe_machine(device: str) -> Machine:
    """Reads what the system tells, and measures the copy bandwidth of `device`."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gb=round(_memory_bytes() / 1e9, 1),
        device=device,
        gpus=_gpus(),
        copy_gb_per_s=round(copy_bandwidth(device) / 1e9, 1),
        versions={"python": platform.python_version(), **_versions()},
    )


def copy_bandwidth(device: str) -> float:
    """Bytes read and written a second by a copy much larger than the caches: the best of five."""
    import torch

    source = torch.ones(_COPY_BYTES // 4, device=device)  # written to, or the system maps one and the same zero page
    target = torch.empty_like(source).fill_(2.0)
    best = float("inf")
    for _ in range(5):
        _synchronize(device)
        started = time.perf_counter()
        target.copy_(source)
        _synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2 * _COPY_BYTES / best


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
