"""Manifests: an engine's plan for machines that run containers, as Kubernetes objects or a compose file.

Nothing in them depends on the machine that writes them: models are under /models in the containers, and come from the
hub or from a volume that the operator fills. Keys are named, not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from slipstream.engines import find_folder, folders
from slipstream.engines.container_image import EngineImage, Package
from slipstream.engines.driver import ExternalEngine
from slipstream.engines.engine_types import PLAIN, Argument, EngineSettings, StartPlan
from slipstream.engines.manifests.compose import compose_documents, compose_hints
from slipstream.engines.manifests.kubernetes import kubernetes_documents, kubernetes_hints
from slipstream.engines.manifests.layout import KEYS, RAY_TOKEN, Layout
from slipstream.engines.manifests.models import ModelSource
from slipstream.engines.secrets import HIDDEN, without_secrets
from slipstream.errors import UsageError
from slipstream.writing import commented

ALL_INTERFACES = "0.0.0.0"
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Format:
    """`documents` creates the objects; `hints` say what to do with the file."""

    documents: Callable[[Layout], list[dict[str, Any]]]
    hints: Callable[[Layout], list[str]]
    always_key: bool  # others can reach the server, so it requires an API key
    host_network: bool  # with several machines


@dataclass(frozen=True, slots=True)
class ManifestModels:
    """The models of a manifest by their spec in the settings, and the size of all together (None: unknown)."""

    sources: Mapping[str, ModelSource]
    weight_bytes: int | None


FORMATS = {
    "kubernetes": Format(kubernetes_documents, kubernetes_hints, always_key=True, host_network=False),
    "compose": Format(compose_documents, compose_hints, always_key=False, host_network=True),
}


def check_format(form: str) -> None:
    """Raises UsageError with the valid names."""
    if form not in FORMATS:
        raise UsageError(f"format {form!r}; expected engine, {', '.join(FORMATS)}")


def write_manifest(
    form: str, engine: ExternalEngine, settings: EngineSettings, models: ManifestModels, image: str | None = None
) -> str:
    """The file's text, with the reason for every argument at the top. Raises UsageError for what can't be written."""
    check_format(form)
    layout, plan = layout_of(FORMATS[form], engine, settings, models, image)
    documents = FORMATS[form].documents(layout)
    method = "plain decoding" if settings.method == PLAIN else settings.method
    head = [
        f"Written by slipstream export for {engine.name} ({engine.version}): {method} on {layout.models[0].name}.",
        *_image_hints(layout, image),
        *([f"Keys among the arguments are not written here: replace {HIDDEN}."] if HIDDEN in layout.serve else []),
        "What to do:",
        *(f"  {number}. {hint}" for number, hint in enumerate(FORMATS[form].hints(layout), 1)),
        "Arguments:",
        *(f"  {' '.join(argument.words)}  {argument.why}" for argument in plan.arguments if argument.why),
    ]
    return commented(head) + "---\n".join(
        yaml.dump(doc, Dumper=_Dumper, sort_keys=False, width=120) for doc in documents
    )


class _Dumper(yaml.SafeDumper):
    """Writes scripts as blocks, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _write_text)


def layout_of(
    form: Format, engine: ExternalEngine, settings: EngineSettings, models: ManifestModels, image: str | None
) -> tuple[Layout, StartPlan]:
    """The settings inside a container, where models are at their mount points."""
    facts = _image(engine, settings)
    inside = _inside(form, settings, models, facts)
    plan = without_secrets(engine.plan(inside, Path(KEYS)))
    source = models.sources[settings.model]
    if facts.name_flag not in settings.extra:
        name = Argument(facts.name_flag, source.name, "the model's name in the API")
        plan = replace(plan, arguments=(*plan.arguments, name))
    words = (word for argument in plan.arguments for word in argument.words)
    ray = settings.nodes > 1
    layout = Layout(
        name=f"{engine.name}-{_slug(source.name)}"[:50].rstrip("-"),
        image=image or facts.named(engine.version),
        engine=facts,
        serve=(*(plan.program[-3:] if ray else plan.program), *words),  # Layout has its own shell for Ray
        url=inside.url + engine.readiness.path,
        health=engine.readiness.path,
        host="127.0.0.1" if settings.host == "localhost" else settings.host,
        port=settings.port,
        nodes=settings.nodes,
        gpus_each=settings.tensor_parallel * settings.pipeline_parallel // settings.nodes,
        models=tuple(dict.fromkeys(models.sources.values())),
        weight_bytes=models.weight_bytes,
        packages=_packages(facts, settings),
        env=plan.env,
        # The server needs no HF_TOKEN: only the download does.
        secrets=tuple(n for n in (*plan.secret_env, *([RAY_TOKEN] if ray else [])) if n != "HF_TOKEN"),
        secret_files=tuple(plan.secret_files),
    )
    return layout, plan


def _inside(form: Format, settings: EngineSettings, models: ManifestModels, facts: EngineImage) -> EngineSettings:
    """A key is required as soon as other machines can connect."""
    on_host = form.host_network and settings.nodes > 1
    needs_key = form.always_key or settings.host not in LOCAL_HOSTS
    return replace(
        settings,
        model=models.sources[settings.model].path,
        draft=models.sources[settings.draft].path if settings.draft else None,
        host=settings.host if on_host else ALL_INTERFACES,
        program=facts.program,
        secrets=({"--api-key": HIDDEN} if needs_key else {}) | dict(settings.secrets),
    )


def _packages(facts: EngineImage, settings: EngineSettings) -> tuple[Package, ...]:
    found = (facts.packages.get(settings.method), facts.ray if settings.nodes > 1 else None)
    return tuple(package for package in found if package)


def _image_hints(layout: Layout, image: str | None) -> list[str]:
    lines = [layout.engine.note] if layout.engine.note and image is None else []
    return lines + [
        f"If the image does not have {package.pip}, it is installed at every start, in up to {package.install_s // 60} "
        f"minutes. To avoid that, build an image (FROM {layout.image}, RUN {package.install}) and pass --image."
        for package in layout.packages
    ]


def _slug(model: str) -> str:
    """A valid Kubernetes name: lower case letters, digits and dashes."""
    last = model.rstrip("/").rpartition("/")[2].lower()
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in last).strip("-") or "model"


def _image(engine: ExternalEngine, settings: EngineSettings) -> EngineImage:
    """Raises UsageError if there is no image for the engine, or none that can run these settings."""
    found = find_folder(engine.name).facts.image
    if found is None:
        names = ", ".join(folder.name for folder in folders() if folder.facts.image)
        raise UsageError(
            f"manifests are only written for {names}; for {engine.name} use --format engine, and your own image"
        )
    if found.ray is None and settings.nodes * settings.pipeline_parallel > 1:
        raise UsageError(
            f"manifests for several machines or a pipeline are not written for {engine.name}: remove --nodes and "
            "--pipeline-parallel"
        )
    return found
