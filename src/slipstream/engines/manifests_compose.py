"""A Layout as a compose file: one service on one machine; on several, a profile for the first and one for the rest."""

from __future__ import annotations

from typing import Any

from slipstream.engines.manifests_layout import HUB_CACHE, SHM_BYTES, Layout
from slipstream.engines.vllm.driver import RAY_ENV

Object = dict[str, Any]


def compose_documents(layout: Layout) -> list[Object]:
    if layout.nodes == 1:
        service = _service(layout, layout.command) | {"ports": [f"{layout.port}:{layout.port}"]}
        return [_file(layout, {"server": service | _healthcheck(layout)})]
    head = _service(layout, layout.head_command) | {"profiles": ["head"], "network_mode": "host"}
    worker = _service(layout, layout.worker_command("${RAY_HEAD}"), expands=True)
    services = {
        "head": head | _healthcheck(layout),
        "worker": worker | {"profiles": ["worker"], "network_mode": "host"},
    }
    return [_file(layout, services)]


def _file(layout: Layout, services: Object) -> Object:
    return {"name": layout.name, "services": services, "volumes": {"cache": None}}


def _service(layout: Layout, command: tuple[str, ...], *, expands: bool = False) -> Object:
    """`expands`: the command has variables that compose fills in; else its dollar signs are meant for the shell."""
    environment = {"HF_TOKEN": "${HF_TOKEN:-}"} | {name: f"${{{name}:?set it}}" for name in layout.secrets}
    if layout.nodes > 1:
        token = "${RAY_AUTH_TOKEN:?make one: openssl rand -hex 32}"
        environment |= {"RAY_AUTH_TOKEN": token, "NCCL_DEBUG": "WARN", **RAY_ENV}
    gpus = {"driver": "nvidia", "count": layout.gpus_each, "capabilities": ["gpu"]}
    return {
        "image": layout.image,
        "entrypoint": [word if expands else word.replace("$", "$$") for word in command],
        "environment": environment,
        "shm_size": f"{SHM_BYTES >> 30}gb",
        "volumes": [f"cache:{HUB_CACHE}", *(f"{mount.source}:{mount.target}:ro" for mount in layout.mounts)],
        "deploy": {"resources": {"reservations": {"devices": [gpus]}}},
        "restart": "unless-stopped",
    }


def _healthcheck(layout: Layout) -> Object:
    asks = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{layout.port}/health')"
    test = ["CMD", "python3", "-c", asks]
    return {"healthcheck": {"test": test, "interval": "10s", "timeout": "5s", "retries": 6, "start_period": "1h"}}
