"""Ollama's local store: a manifest has the name of the blob with the GGUF file."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any

from slipstream.errors import DamagedModelError, ModelNotFoundError
from slipstream.models.files import expand_home, read_json

MODEL_LAYER = "application/vnd.ollama.image.model"
DEFAULT_REGISTRY = "registry.ollama.ai"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
NAME = re.compile(r"(?!.*\.\.)[\w.-]+(/[\w.-]+){0,2}(:[\w.-]+)?")


def find_ollama_model(name: str) -> Path:
    """The GGUF blob of NAME[:TAG]. Raises ModelNotFoundError that lists what is in the store."""
    if not NAME.fullmatch(name):
        raise ModelNotFoundError(f"{name!r} is not a valid Ollama model name. Expected ollama:NAME[:TAG].")
    for store in stores():
        manifest = store / "manifests" / _manifest_path(name)
        if manifest.is_file():
            return _blob(store, manifest)
    known = installed_models()
    listed = ", ".join(known) if known else f"no models (looked in {', '.join(map(str, stores()))})"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean ollama:{near[0]}?" if near else f" Run: ollama pull {name}"
    raise ModelNotFoundError(f"Ollama's store has no {name!r}; it has {listed}.{hint}")


def stores() -> list[Path]:
    """Folders in which Ollama stores models; the configured one comes first."""
    override = os.environ.get("OLLAMA_MODELS")
    if override:
        return [expand_home(override)]
    return [expand_home("~/.ollama/models"), Path("/usr/share/ollama/.ollama/models")]


def installed_models() -> list[str]:
    """NAME:TAG of every manifest that can be seen."""
    names = set()
    for store in stores():
        root = store / "manifests"
        for manifest in _files_below(root):
            names.add(_shown_name(manifest.relative_to(root)))
    return sorted(names)


def _files_below(root: Path) -> list[Path]:
    try:
        return [path for path in root.rglob("*") if path.is_file()]
    except OSError:  # there is often no permission to read the system-wide store
        return []


def _manifest_path(name: str) -> Path:
    model, _, tag = name.partition(":")
    parts = model.split("/")
    if len(parts) == 1:
        parts = [DEFAULT_REGISTRY, "library", *parts]
    elif len(parts) == 2:
        parts = [DEFAULT_REGISTRY, *parts]
    return Path(*parts, tag or "latest")


def _shown_name(relative: Path) -> str:
    *folders, tag = relative.parts
    if folders[:1] == [DEFAULT_REGISTRY]:
        folders = folders[1:]
    if folders[:1] == ["library"]:
        folders = folders[1:]
    return f"{'/'.join(folders)}:{tag}"


def _blob(store: Path, manifest: Path) -> Path:
    digest = _model_digest(read_json(manifest), manifest)
    blob = store / "blobs" / digest.replace(":", "-")
    if not blob.is_file():
        raise ModelNotFoundError(f"{manifest} refers to the blob {blob}, which does not exist. Pull the model again.")
    return blob


def _model_digest(manifest: dict[str, Any], path: Path) -> str:
    layers = manifest.get("layers")
    for layer in layers if isinstance(layers, list) else []:
        if isinstance(layer, dict) and layer.get("mediaType") == MODEL_LAYER:
            digest = layer.get("digest")
            if isinstance(digest, str) and DIGEST.fullmatch(digest):
                return digest
    raise DamagedModelError(f"{path} has no model layer with a SHA-256 digest. Pull the model again.")
