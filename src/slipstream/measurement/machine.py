"""The machine that a benchmark ran on, for its result."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from slipstream.measurement.results import MachineRecord
from slipstream.predict.machine import copy_bandwidth, inspect

_PACKAGES = ("slipstream", "torch", "numpy", "tokenizers", "gguf")


def describe_machine(device: str) -> MachineRecord:
    """Asks the system, and measures the copy bandwidth of `device`."""
    machine = inspect()
    return MachineRecord(
        processor=machine.processor,
        cores=machine.cores,
        memory_gb=round(machine.memory_total / 1e9, 1),
        device=device,
        gpus=[gpu.name for gpu in machine.gpus],
        copy_gb_per_s=round(copy_bandwidth(device) / 1e9, 1),
        versions={"python": platform.python_version(), **_versions()},
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
