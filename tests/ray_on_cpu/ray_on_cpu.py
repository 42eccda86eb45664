"""A platform plugin of vLLM for tests: its CPU platform, with workers that Ray may place.

vLLM 0.32 refuses Ray on a CPU only because its CPU platform names no resource for Ray to count. Ray is told of GPUs
that are not there; workers never touch them. Found through its dist-info when this folder is on PYTHONPATH.
"""

from __future__ import annotations


def register() -> str:
    return "ray_on_cpu.RayCpuPlatform"


def __getattr__(name: str) -> type:
    """The class is made when it is asked for: plugins are listed before vLLM's platforms can be imported."""
    if name != "RayCpuPlatform":
        raise AttributeError(name)
    from vllm.platforms.cpu import CpuPlatform

    return type(name, (CpuPlatform,), {"ray_device_key": "GPU", "__module__": __name__})
