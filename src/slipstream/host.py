"""The host: cores and main memory that this process may use. A container's own limit counts where it is lower."""

from __future__ import annotations

import os
import re
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_UNKNOWN_FREE = 8 << 30  # where the system does not tell


def cores() -> int:
    return len(_usable_cpus())


def physical_cores() -> int:
    """Each core counted once, however many threads it runs."""
    siblings = Path("/sys/devices/system/cpu")
    names = [file_text(siblings / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in _usable_cpus()]
    return max(1, len(set(names)))


def total_memory() -> int:
    """Bytes; 0 where the system does not tell."""
    total = _meminfo("MemTotal")
    if total is None:
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError):
            return 0
    return min(total, file_number(_CGROUP / "memory.max") or total)


def free_memory() -> int:
    """Bytes that can be had without swapping. Files that are only cached count as free."""
    free, limit = _meminfo("MemAvailable"), file_number(_CGROUP / "memory.max")
    if free is None:
        return total_memory() or _UNKNOWN_FREE
    if limit is None:
        return free
    cached = re.search(r"^inactive_file (\d+)", file_text(_CGROUP / "memory.stat") or "", re.M)
    used = (file_number(_CGROUP / "memory.current") or 0) - (int(cached[1]) if cached else 0)
    return min(free, max(limit - used, 0))


def file_text(path: Path) -> str | None:
    """None where the file can't be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def file_number(path: Path) -> int | None:
    text = file_text(path)
    return int(text) if text and text.isdigit() else None


def _usable_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _meminfo(key: str) -> int | None:
    found = re.search(rf"^{key}:\s*(\d+) kB", file_text(Path("/proc/meminfo")) or "", re.M)
    return int(found[1]) << 10 if found else None
