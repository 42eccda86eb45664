"""A Layout as a compose file: one service on one machine; on several, a profile for the first and one for the rest.

The models are in the folder or volume MODELS; a service downloads those of the hub into it before the server starts.
"""

from __future__ import annotations

from typing import Any

from slipstream.engines.manifests.layout import KEYS, Layout
from slipstream.engines.manifests.models import FETCH_IMAGE, MODELS

Object = dict[str, Any]

_CONFINED = {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}


def compose_documents(layout: Layout) -> list[Object]:
    if layout.nodes == 1:
        address = f"[{layout.host}]" if ":" in layout.host else layout.host
        published = {"ports": [f"{address}:{layout.port}:{layout.port}"]}
        services = {"server": _service(layout, layout.command) | published | _healthcheck(layout)}
    else:
        head = _service(layout, layout.command) | {"profiles": ["head"], "network_mode": "host"}
        worker = _service(layout, layout.worker_command("$RAY_HEAD"))
        worker["environment"] = worker["environment"] | {"RAY_HEAD": "${RAY_HEAD:-}"}  # its command checks it
        services = {
            "head": head | _healthcheck(layout),
            "worker": worker | {"profiles": ["worker"], "network_mode": "host"},
        }
    file: Object = {"name": layout.name, "services": services | _models_service(layout)}
    if not _copied(layout):
        file["volumes"] = {"models": None}
    if layout.secret_files:
        file["secrets"] = {name: {"file": f"${{KEYS:?folder with {name}}}/{name}"} for name in layout.secret_files}
    return [file]


def compose_hints(layout: Layout) -> list[str]:
    """What the operator has to do, in order."""
    together = ", the same on all machines" if layout.nodes > 1 else ""
    lines = [f"Create a key{together}: export {name}=$(openssl rand -hex 32)" for name in layout.secrets]
    lines += [
        f'Write {name}, with mode 600 and the line api-key: "KEY"; export KEYS=FOLDER, the folder that has it'
        for name in layout.secret_files
    ]
    if copied := _copied(layout):
        names = ", ".join(copied)
        lines.append(f"export MODELS=FOLDER, the folder that has {names}, readable for all users (chmod -R a+rX)")
    else:
        lines.append("To download into a folder instead of the volume models: export MODELS=FOLDER")
    if any(model.repo for model in layout.models):
        lines.append("If a model is gated: export HF_TOKEN=TOKEN")
    if layout.nodes == 1:
        return [*lines, "docker compose -f THIS_FILE up"]
    return [
        *lines,
        "On the first machine: docker compose -f THIS_FILE --profile head up",
        f"On every other machine ({layout.nodes - 1} in all): RAY_HEAD=FIRST_MACHINE docker compose -f THIS_FILE "
        "--profile worker up",
    ]


def _copied(layout: Layout) -> list[str]:
    """Models that the operator has in the folder MODELS."""
    return [model.files for model in layout.models if model.repo is None]


def _volume(layout: Layout, *, read_only: bool) -> Object | str:
    copied = _copied(layout)
    if not copied:
        return f"${{MODELS:-models}}:{MODELS}{':ro' if read_only else ''}"
    return {
        "type": "bind",
        "source": f"${{MODELS:?folder that has {' and '.join(copied)}}}",
        "target": MODELS,
        "read_only": read_only,
        "bind": {"create_host_path": False},
    }


def _models_service(layout: Layout) -> Object:
    """Downloads the models of the hub; empty if there are none."""
    steps = [model.fill() for model in layout.models if model.repo]
    if not steps:
        return {}
    service = {
        "image": FETCH_IMAGE,
        "entrypoint": ["sh", "-e", "-c", _escaped("\n".join(steps))],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}"},
        "volumes": [_volume(layout, read_only=False)],
        **_CONFINED,
        "cap_add": ["DAC_OVERRIDE"],  # to write into a folder that another user owns
    }
    return {"models": service | ({"profiles": ["head", "worker"]} if layout.nodes > 1 else {})}


def _service(layout: Layout, command: tuple[str, ...]) -> Object:
    secrets = {name: f"${{{name}:?not set, the top of this file says how}}" for name in layout.secrets}
    gpus = {"driver": "nvidia", "count": layout.gpus_each, "capabilities": ["gpu"]}
    service: Object = {
        "image": layout.image,
        "entrypoint": [_escaped(word) for word in command],
        "environment": secrets | layout.all_env,
        "shm_size": f"{layout.shm_gib}gb",
        "volumes": [_volume(layout, read_only=True)],
        "deploy": {"resources": {"reservations": {"devices": [gpus]}}},
        "restart": "unless-stopped",
        **_CONFINED,
    }
    if layout.engine.user:
        service["user"] = f"{layout.engine.user}:{layout.engine.group}"
    else:
        service["cap_add"] = ["DAC_OVERRIDE"]  # root reads models and keys that another user owns
    if layout.secret_files:
        service["secrets"] = [{"source": name, "target": f"{KEYS}/{name}"} for name in layout.secret_files]
    if any(model.repo for model in layout.models):
        service["depends_on"] = {"models": {"condition": "service_completed_successfully"}}
    return service


def _escaped(word: str) -> str:
    """Dollar signs are for the shell in the container, not for compose."""
    return word.replace("$", "$$")


def _healthcheck(layout: Layout) -> Object:
    test = ["CMD", "curl", "-fsS", "-o", "/dev/null", layout.url]
    start = f"{layout.start_s}s"
    return {"healthcheck": {"test": test, "interval": "10s", "timeout": "5s", "retries": 6, "start_period": start}}
