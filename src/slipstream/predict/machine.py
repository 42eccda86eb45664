"""Machine: its hardware, how fast it copies memory, and which devices the installed packages support.

No heavy imports: torch and llama-cpp-python are inspected without importing them here.
"""

from __future__ import annotations

import functools
import platform
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from slipstream.host import c_compiler, cores, file_text, free_memory, total_memory
from slipstream.predict.gpus import Gpu, ask, find_gpus
from slipstream.predict.packages import InstalledPackage, installed_llama_cpp, installed_torch

# Larger than the caches. On the CPU two of them stay below the 300 MB that the doctor may take; 256 MB measure 3 % more
# there (60 and 62 GB/s on two Neoverse-N1 cores). On a GPU less would measure the start of the kernel.
COPY_BYTES, GPU_COPY_BYTES = 96 << 20, 256 << 20
CPU_SHARE = 0.5  # share of the copy bandwidth (read + write) that reading weights reaches


@dataclass(frozen=True, slots=True)
class Machine:
    processor: str
    cores: int
    memory_total: int  # bytes
    memory_free: int
    copy_bandwidth: float  # bytes per second read and written by a large copy, measured
    gpus: tuple[Gpu, ...] = ()
    torch: InstalledPackage | None = None
    llama_cpp: InstalledPackage | None = None
    has_compiler: bool = True  # of C, which the CPU kernels of the torch backend are built with

    def gpu_for(self, num_bytes: int) -> Gpu | None:
        """The fastest GPU with this much memory; if only all GPUs together have it, the slowest."""
        fitting = [gpu for gpu in self.gpus if gpu.memory_total >= num_bytes]
        if not fitting and sum(gpu.memory_total for gpu in self.gpus) >= num_bytes:
            return min(self.gpus, key=lambda gpu: gpu.read_bandwidth, default=None)
        return max(fitting, key=lambda gpu: gpu.read_bandwidth, default=None)

    def read_bandwidth(self, num_bytes: int) -> float:
        """Bytes of weights per second that decoding is expected to read, on the device that has this much memory."""
        gpu = self.gpu_for(num_bytes)
        return gpu.read_bandwidth if gpu else self.cpu_read_bandwidth

    @property
    def cpu_read_bandwidth(self) -> float:
        return self.copy_bandwidth * CPU_SHARE


# -- inspecting -------------------------------------------------------------------------------------------------------


def inspect() -> Machine:
    """Inspects this machine in under 3 s. Unknown values are left empty; raises nothing."""
    processor, memory_total, memory_free = _processor(), total_memory(), free_memory()
    with ThreadPoolExecutor(2) as pool:
        llama_cpp, gpus = pool.submit(installed_llama_cpp), pool.submit(find_gpus, processor, memory_total, memory_free)
        bandwidth = copy_bandwidth()
        return Machine(
            processor=processor,
            cores=cores(),
            memory_total=memory_total,
            memory_free=memory_free,
            copy_bandwidth=bandwidth,
            gpus=gpus.result(),
            torch=installed_torch(bool(gpus.result())),
            llama_cpp=llama_cpp.result(),
            has_compiler=bool(c_compiler()),
        )


@functools.cache
def copy_bandwidth(device: str = "cpu") -> float:
    """Bytes per second read and written by a copy that is much larger than the caches: the best of five.

    On the CPU all cores copy. Devices other than CUDA count as the CPU.
    """
    if device.startswith("cuda"):
        return 2 * GPU_COPY_BYTES / _gpu_copy_s(device)
    return 2 * COPY_BYTES / _cpu_copy_s()


def _cpu_copy_s() -> float:
    import numpy as np

    parts = cores()
    source = np.ones((parts, COPY_BYTES // 4 // parts), np.float32)
    target = np.full_like(source, 2.0)  # write to it, or the system maps the same zero page everywhere
    with ThreadPoolExecutor(parts) as pool:
        return _best_of_five(lambda: list(pool.map(np.copyto, target, source)))


def _gpu_copy_s(device: str) -> float:
    import torch

    source = torch.ones(GPU_COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize(device)

    copy()
    return _best_of_five(copy)


def _best_of_five(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def _processor() -> str:
    if platform.system() == "Darwin":
        return (ask("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()).strip()
    names = re.findall(r"^model name\s*:\s*(.+)$", file_text(Path("/proc/cpuinfo")) or "", re.M)
    return names[0] if names else platform.processor() or platform.machine()
