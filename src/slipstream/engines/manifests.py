"""Manifests: an engine's plan for machines that run containers, as Kubernetes objects or a compose file.

Supports vLLM, the engine that runs on several machines. A local model is mounted under /models; a hub model is
downloaded into a cache that outlives the container.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from slipstream.engines.driver import ExternalEngine
from slipstream.engines.engine_types import EngineSettings, StartPlan
from slipstream.engines.manifests_compose import compose_documents
from slipstream.engines.manifests_kubernetes import kubernetes_documents
from slipstream.engines.manifests_layout import MODELS, Layout, Mount
from slipstream.engines.secrets import without_secrets
from slipstream.errors import UsageError

IMAGES = {"vllm": "vllm/vllm-openai:v{version}"}


@dataclass(frozen=True, slots=True)
class Format:
    """`documents` creates the objects; `hints` say what to do with the file."""

    documents: Callable[[Layout], list[dict[str, Any]]]
    hints: Callable[[Layout], list[str]]


def _kubernetes_hints(layout: Layout) -> list[str]:
    lines = ["kubectl apply -f THIS_FILE"]
    if layout.nodes > 1:
        secret = f"kubectl create secret generic {layout.name}-ray --from-literal=token=$(openssl rand -hex 32)"
        lines.insert(0, f"Ray requires a token, so that others in the network can't run code: {secret}")
    if layout.secrets:
        values = " ".join(f"--from-literal={name}=KEY" for name in layout.secrets)
        lines.insert(0, f"API keys are not written here: kubectl create secret generic {layout.secret_name} {values}")
    lines += [f"first copy {mount.source} to the volume claim {layout.name}-models" for mount in layout.mounts]
    return lines


def _compose_hints(layout: Layout) -> list[str]:
    keys = [f"API keys are not written here: export {name}=KEY" for name in layout.secrets]
    if layout.nodes == 1:
        return [*keys, "docker compose -f THIS_FILE up"]
    return [
        *keys,
        "create a secret once (openssl rand -hex 32), and set it on all machines: export RAY_AUTH_TOKEN=SECRET",
        "on the first machine: docker compose -f THIS_FILE --profile head up",
        f"on every other machine ({layout.nodes - 1} in all): RAY_HEAD=FIRST_MACHINE docker compose -f THIS_FILE "
        "--profile worker up",
    ]


FORMATS = {
    "kubernetes": Format(kubernetes_documents, _kubernetes_hints),
    "compose": Format(compose_documents, _compose_hints),
}


def write_manifest(form: str, engine: ExternalEngine, settings: EngineSettings) -> str:
    """The file's text, with the reason for every argument at the top. Raises UsageError for an unsupported format."""
    if form not in FORMATS:
        raise UsageError(f"format {form!r}; expected engine, {', '.join(FORMATS)}")
    if engine.name not in IMAGES:
        raise UsageError(
            f"the format {form} is only available for {', '.join(IMAGES)}; use --format engine for {engine.name}"
        )
    layout, plan = layout_of(engine, settings)
    documents = FORMATS[form].documents(layout)
    head = [
        f"Written by slipstream export for {engine.name} ({engine.version}): {settings.method} on {settings.model}.",
        *FORMATS[form].hints(layout),
        *(f"  {' '.join(argument.words)}  {argument.why}" for argument in plan.arguments if argument.why),
    ]
    comments = "".join(f"# {line}\n" for line in head)
    return comments + "---\n".join(yaml.safe_dump(doc, sort_keys=False, width=120) for doc in documents)


def layout_of(engine: ExternalEngine, settings: EngineSettings) -> tuple[Layout, StartPlan]:
    """The settings inside a container: it listens on all interfaces, and models are at their mount points."""
    mounts = tuple(dict.fromkeys(mount for spec in (settings.model, settings.draft) if (mount := _mount(spec))))
    inside = replace(
        settings,
        model=_inside(settings.model),
        draft=_inside(settings.draft) if settings.draft else None,
        host="0.0.0.0",
        program=engine.name,
    )
    plan = without_secrets(engine.plan(inside, Path()))
    layout = Layout(
        name=f"{engine.name}-{_slug(settings.model)}"[:50].rstrip("-"),
        image=IMAGES[engine.name].format(version=engine.version.split()[-1]),
        command=plan.argv,
        port=settings.port,
        nodes=settings.nodes,
        gpus_each=settings.tensor_parallel * settings.pipeline_parallel // settings.nodes,
        mounts=mounts,
        secrets=tuple(name for name in plan.secret_env if name != "HF_TOKEN"),  # which every layout has
    )
    return layout, plan


def _mount(spec: str | None) -> Mount | None:
    """A folder on this disk; None for a model that the engine downloads itself."""
    if spec is None or not Path(spec).exists():
        return None
    path = Path(spec).resolve()
    return Mount(str(path), str(PurePosixPath(MODELS) / path.name))


def _inside(spec: str) -> str:
    mount = _mount(spec)
    return mount.target if mount else spec


def _slug(model: str) -> str:
    """A valid Kubernetes name: lower case letters, digits and dashes."""
    last = model.rstrip("/").rpartition("/")[2].lower()
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in last).strip("-") or "model"
