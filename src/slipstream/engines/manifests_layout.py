"""Layout: what has to run where, in words that Kubernetes and compose share."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.engines.vllm.driver import ray_worker

MODELS = "/models"  # folders of models, inside
HUB_CACHE = "/root/.cache/huggingface"  # what the hub was asked for, inside
SHM_BYTES = 8 << 30  # tensors between the processes of a machine go through /dev/shm, whose default is 64 MB


# vLLM's image has come without Ray since 0.19.
WITH_RAY = "command -v ray > /dev/null || pip install --quiet ray==2.60.0"


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
    secrets: tuple[str, ...] = ()  # variables that hold keys, whose values are not written

    @property
    def secret_name(self) -> str:
        """Of the Kubernetes secret with `secrets` in it."""
        return f"{self.name}-keys"

    @property
    def head_command(self) -> tuple[str, ...]:
        return ("sh", "-e", "-c", f'{WITH_RAY}; exec "$@"', "sh", *self.command)

    def worker_command(self, head: str) -> tuple[str, ...]:
        """What every other machine runs: joins the head as soon as it is there, and again when it comes back."""
        return ("sh", "-e", "-c", f"{WITH_RAY}; until {' '.join(ray_worker(head))}; do sleep 5; done")
