"""The host: cores and main memory that this process may use, a container's limits included, and its C compiler."""

from __future__ import annotations

import gc
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import UsageError

IGNORE_MEMORY = "SLIPSTREAM_IGNORE_MEMORY"  # set to 1: load models although they do not fit in memory

_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_UNKNOWN_FREE = 8 << 30  # where the system does not tell
_MAX_THREADS_PER_CORE = 4  # more than one is only slower, but shows that the text does not depend on their number


@contextmanager
def no_collection() -> Iterator[None]:
    """Python's garbage collector has to wait."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def cores() -> int:
    return len(_usable_cpus())


def physical_cores() -> int:
    """Each core counted once, however many threads it runs."""
    siblings = Path("/sys/devices/system/cpu")
    names = [file_text(siblings / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in _usable_cpus()]
    return max(1, len(set(names)))


def check_threads(name: str, number: int | None) -> None:
    """Raises UsageError for a number of threads that this machine can't sensibly run; None is left to others."""
    most = _MAX_THREADS_PER_CORE * cores()
    if number is not None and number < 1:
        raise UsageError(f"{name} is {number}; expected 1 or more")
    if number is not None and number > most:
        raise UsageError(f"{name} is {number}; this machine has {cores()} cores: expected {most} at most")


def c_compiler() -> list[str]:
    """$CC, which may have arguments (`ccache gcc`), else the first compiler found. Empty: there is none."""
    found = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    return shlex.split(os.environ.get("CC", "")) or ([found] if found else [])


def total_memory() -> int:
    """Bytes; 0 where the system does not tell."""
    total = _meminfo("MemTotal")
    if total is None:
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError):
            return 0
    return min([total, *(group.limit for group in _limits())])


def free_memory() -> int:
    """Bytes that can be had without swapping. Files that are only cached count as free."""
    free = _meminfo("MemAvailable")
    if free is None:
        return total_memory() or _UNKNOWN_FREE
    return min([free, *(group.free for group in _limits())])


def ignores_memory() -> bool:
    """Whether the user insists on loading models that do not fit."""
    return os.environ.get(IGNORE_MEMORY, "") not in ("", "0")


@dataclass(frozen=True, slots=True)
class _GroupLimit:
    """The memory limit of a control group of this process, and what of it is left."""

    limit: int
    free: int


def _limits() -> list[_GroupLimit]:
    """Of all groups of this process, from its own to the root: each of them may have a limit."""
    own = dict(line.split(":", 2)[1:] for line in (file_text(_OWN_GROUPS) or "").splitlines() if line.count(":") >= 2)
    second = _group_limits(_CGROUP, own.get("", "/"), ("memory.max", "memory.current", "inactive_file"))
    first = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return second or _group_limits(_CGROUP / "memory", own.get("memory", "/"), first)


def _group_limits(root: Path, own: str, names: tuple[str, str, str]) -> list[_GroupLimit]:
    limit_name, used_name, cached_name = names
    folder = root / own.strip("/")
    found = []
    for group in (folder, *folder.parents):
        limit = file_number(group / limit_name)
        if limit is not None:
            cached = re.search(rf"^{cached_name} (\d+)", file_text(group / "memory.stat") or "", re.M)
            used = (file_number(group / used_name) or 0) - (int(cached[1]) if cached else 0)
            found.append(_GroupLimit(limit, max(limit - used, 0)))
        if group == root:
            break
    return found


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
