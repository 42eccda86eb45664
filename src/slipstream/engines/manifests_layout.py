"""Layout: what has to run where, in words that Kubernetes and compose share."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.engines.vllm import ray_worker

MODELS = "/models"  # folders of models, inside
HUB_CACHE = "/root/.cache/huggingface"  # what the hub was asked for, inside
SHM_BYTES = 8 << 30  # tensors between the processes of a machine go through /dev/shm, whose default is 64 MB


@dataclass(frozen=True, slots=True)
class Mount:
    source: str  # a folder outside
    target: str  # where it is inside


@dataclass(frozen=True, slots=True)
class Layout:
    """One server, on one machine or on several. The first machine also runs Ray's head where there are several."""

    name: str
    image: str
    command: tuple[str, ...]
    port: int
    nodes: int
    gpus_each: int  # GPUs of a machine
    mounts: tuple[Mount, ...]

    def worker_command(self, head: str) -> tuple[str, ...]:
        """What every other machine runs: joins the head as soon as it is there, and again when it comes back."""
        return ("sh", "-c", f"until {' '.join(ray_worker(head))}; do sleep 5; done")
