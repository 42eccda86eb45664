"""Layout: what has to run where, in words that Kubernetes and compose share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.engines.container_image import EngineImage, Package
from slipstream.engines.manifests.models import ModelSource
from slipstream.engines.vllm.driver import RAY_ENV, ray_head, ray_worker
from slipstream.errors import UsageError

KEYS = "/run/keys"  # files with keys, inside
RAY_TOKEN = "RAY_AUTH_TOKEN"
_USER_PATH = 'export PATH="$HOME/.local/bin:$PATH"'  # programs that pip installed for a user other than root
_SHM_EACH_GPU = 4 << 30  # processes of a machine exchange tensors through /dev/shm, whose default is 64 MB
_MIN_SHM = 8 << 30
_ROOM, _MORE_ROOM = 1.2, 5 << 30  # of a volume, beyond the weights: factor and bytes
_LOAD_BYTES_PER_S = 200e6  # a slow network disk
_FETCH_BYTES_PER_S = 20e6  # a slow download
_START_S = 900  # compiling and capturing graphs
_UNKNOWN_START_S = 7200  # if the size of the weights is unknown


@dataclass(frozen=True, slots=True)
class Layout:
    """One server, on one machine or on several. The first machine also runs Ray's head where there are several."""

    name: str
    image: str
    engine: EngineImage
    serve: tuple[str, ...]  # the engine's command
    url: str  # its health, from inside the container
    health: str  # the path of it
    host: str  # the address of the machine on which it is published
    port: int
    nodes: int
    gpus_each: int  # GPUs of a machine
    models: tuple[ModelSource, ...]
    weight_bytes: int | None  # of all models; None: unknown
    packages: tuple[Package, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # variables that hold keys, whose values are not written
    secret_files: tuple[str, ...] = ()  # files in KEYS that hold keys

    @property
    def secret_name(self) -> str:
        """Of the Kubernetes secret with `secrets` and `secret_files` in it."""
        return f"{self.name}-keys"

    @property
    def all_env(self) -> dict[str, str]:
        """Variables with values, for server and workers."""
        home = {"HOME": self.engine.home} if self.engine.home else {}
        ray = {"NCCL_DEBUG": "WARN", **RAY_ENV} if self.nodes > 1 else {}
        return {**home, **self.env, **ray}

    @property
    def shm_gib(self) -> int:
        return max(_MIN_SHM, _SHM_EACH_GPU * self.gpus_each) >> 30

    @property
    def claim_gib(self) -> int:
        """A volume for the models. Raises UsageError if their size is unknown."""
        if self.weight_bytes is None:
            unknown = ", ".join(model.name for model in self.models if model.num_bytes is None)
            raise UsageError(
                f"the size of {unknown} is unknown, so the volume can't be sized: pass --weights-gb N, the GB of all "
                "weights (model and draft together)"
            )
        return math.ceil((self.weight_bytes * _ROOM + _MORE_ROOM) / (1 << 30))

    @property
    def start_s(self) -> int:
        """Time for a start with the models in place, on slow disks."""
        if self.weight_bytes is None:
            return _UNKNOWN_START_S
        installs = sum(package.install_s for package in self.packages)
        return _START_S + installs + math.ceil(self.weight_bytes / _LOAD_BYTES_PER_S)

    @property
    def fill_s(self) -> int:
        """Time to download or copy the models."""
        return math.ceil((self.weight_bytes or 0) / _FETCH_BYTES_PER_S)

    @property
    def command(self) -> tuple[str, ...]:
        """Of the machine that serves."""
        steps = self._setup + ([ray_head()] if self.nodes > 1 else [])
        return _shell([*steps, 'exec "$@"'], *self.serve) if steps else self.serve

    def worker_command(self, head: str) -> tuple[str, ...]:
        """What every other machine runs: joins the head as soon as it is there, and again when it comes back.

        `head` is an address or $VARIABLE; a variable that is not set is an error.
        """
        guard = [f': "${{{head[1:]}:?set it to the address of the first machine}}"'] if head.startswith("$") else []
        join = f"until {' '.join(ray_worker(head))}; do sleep 5; done"
        return _shell([*guard, *self._setup, join])

    @property
    def _setup(self) -> list[str]:
        return [_USER_PATH, *(package.ensure for package in self.packages)] if self.packages else []


def _shell(steps: list[str], *words: str) -> tuple[str, ...]:
    return ("sh", "-e", "-c", "\n".join(steps), *(("sh", *words) if words else ()))
