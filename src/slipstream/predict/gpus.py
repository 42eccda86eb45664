"""GPUs: found through their own tools and drivers, never through a framework."""

from __future__ import annotations

import platform
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipstream.host import file_number, file_text

Vendor = Literal["nvidia", "amd", "apple"]

PROBE_S = 2.5  # limit for one query to the machine
GPU_SHARE = 0.6  # share of the nominal bandwidth that a good engine reaches while decoding
UNKNOWN_BANDWIDTH = 250e9  # a slow discrete GPU; used if the name is not in the table
MIN_DISCRETE_BYTES = 2 << 30  # integrated GPUs report less memory of their own
METAL_SHARE = 0.75  # share of the unified memory that Metal allows a process
NVIDIA_FIELDS = ("name", "memory.total", "memory.free", "compute_cap", "driver_version")

# Nominal memory bandwidth in GB/s from data sheets, not measured. The longest key contained in the GPU's name wins.
BANDWIDTHS = {
    "T4": 320, "P40": 347, "P100": 732, "V100": 900, "A10": 600, "A16": 200, "A30": 933, "A40": 696, "L4": 300,
    "L40": 864, "A100": 1555, "A100 80GB": 1935, "A100-SXM4-80GB": 2039, "H100": 3350, "H100 PCIe": 2000,
    "H100 NVL": 3900, "H20": 4000, "H200": 4800, "GH200": 4000, "B200": 8000,
    "RTX A4000": 448, "RTX A5000": 768, "RTX A6000": 768, "RTX 6000 Ada": 960, "RTX PRO 6000": 1792,
    "GTX 1080 Ti": 484, "RTX 2060": 336, "RTX 2070": 448, "RTX 2080": 448, "RTX 2080 Ti": 616,
    "RTX 3060": 360, "RTX 3060 Ti": 448, "RTX 3070": 448, "RTX 3070 Ti": 608, "RTX 3080": 760, "RTX 3080 Ti": 912,
    "RTX 3090": 936, "RTX 3090 Ti": 1008, "RTX 4060": 272, "RTX 4060 Ti": 288, "RTX 4070": 504, "RTX 4070 Ti": 504,
    "RTX 4070 Ti SUPER": 672, "RTX 4080": 717, "RTX 4080 SUPER": 736, "RTX 4090": 1008, "RTX 5060": 448,
    "RTX 5060 Ti": 448, "RTX 5070": 672, "RTX 5070 Ti": 896, "RTX 5080": 960, "RTX 5090": 1792,
    "RX 7900 XT": 800, "RX 7900 XTX": 960, "RX 9070": 640, "MI210": 1638, "MI250": 3277, "MI300X": 5300,
    "M1": 68, "M1 Pro": 200, "M1 Max": 400, "M1 Ultra": 800, "M2": 100, "M2 Pro": 200, "M2 Max": 400, "M2 Ultra": 800,
    "M3": 100, "M3 Pro": 150, "M3 Max": 300, "M3 Ultra": 819, "M4": 120, "M4 Pro": 273, "M4 Max": 410,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    vendor: Vendor
    memory_total: int  # bytes
    memory_free: int
    compute_capability: float | None  # NVIDIA's
    bandwidth: float | None  # bytes/s, nominal
    driver: str | None

    @property
    def read_bandwidth(self) -> float:
        """Bytes of weights per second that decoding is expected to read."""
        return (self.bandwidth or UNKNOWN_BANDWIDTH) * GPU_SHARE


def find_gpus(processor: str, memory_total: int, memory_free: int) -> tuple[Gpu, ...]:
    """All GPUs of this machine. The arguments describe its main memory, which Apple GPUs share."""
    with ThreadPoolExecutor(2) as pool:
        nvidia, amd = pool.submit(_nvidia_gpus), pool.submit(amd_gpus)
        return nvidia.result() + amd.result() + _apple_gpus(processor, memory_total, memory_free)


def ask(*command: str, timeout_s: float = PROBE_S) -> str | None:
    """The output of a command; None if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return done.stdout if done.returncode == 0 else None


def _nvidia_gpus() -> tuple[Gpu, ...]:
    text = ask("nvidia-smi", f"--query-gpu={','.join(NVIDIA_FIELDS)}", "--format=csv,noheader,nounits")
    return parse_nvidia_smi(text or "")


def parse_nvidia_smi(text: str) -> tuple[Gpu, ...]:
    """GPUs from `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`. Invalid lines are skipped."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(NVIDIA_FIELDS) or not cells[1].isdigit():
            continue
        name, total, free, capability, driver = cells
        free_mib = int(free) if free.isdigit() else int(total)
        gpus.append(
            Gpu(name, "nvidia", int(total) << 20, free_mib << 20, _number(capability), nominal_bandwidth(name), driver)
        )
    return tuple(gpus)


def amd_gpus(root: Path = Path("/sys/class/drm")) -> tuple[Gpu, ...]:
    """GPUs from the amdgpu driver's files. Integrated GPUs, with almost no memory of their own, are skipped."""
    gpus = []
    for folder in sorted(root.glob("card[0-9]*/device")):
        total, used = (file_number(folder / f"mem_info_vram_{what}") for what in ("total", "used"))
        if total and total >= MIN_DISCRETE_BYTES:
            name = file_text(folder / "product_name") or "AMD GPU"
            gpus.append(
                Gpu(
                    name,
                    "amd",
                    total,
                    total - (used or 0),
                    None,
                    nominal_bandwidth(name),
                    file_text(Path("/opt/rocm/.info/version")),
                )
            )
    return tuple(gpus)


def _apple_gpus(processor: str, memory_total: int, memory_free: int) -> tuple[Gpu, ...]:
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return ()
    usable = int(memory_total * METAL_SHARE)
    return (Gpu(processor, "apple", usable, min(usable, memory_free), None, nominal_bandwidth(processor), None),)


def nominal_bandwidth(name: str) -> float | None:
    """Bytes per second of the GPU of this name; None if it is not in the table."""
    found = by_name(BANDWIDTHS, name)
    return found and found * 1e9


def by_name(table: dict[str, int], name: str) -> int | None:
    """What a table says of the GPU of this name."""
    known = [key for key in table if re.search(rf"(?<![A-Z0-9]){re.escape(key)}(?![0-9])", name, re.I)]
    return table[max(known, key=len)] if known else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
