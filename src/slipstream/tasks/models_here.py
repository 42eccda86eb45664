"""pull, list, show, rm: the models on this machine, what their files say, and removing those that were fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.cache import cache_path
from slipstream.catalogue.model_scan import FoundModel, find
from slipstream.errors import ModelNotFoundError, UsageError
from slipstream.findings import BlockedError, Finding, blocking
from slipstream.model_files.local_models import local_place
from slipstream.model_files.model_facts import ModelFacts, describe
from slipstream.model_files.quantisation import label
from slipstream.model_files.weights import check_files, check_weights, refuse_incomplete
from slipstream.model_files.weights_gguf import parts
from slipstream.models.files import cannot_read
from slipstream.models.sources.removal import Removal, builtin_removal, hub_removal
from slipstream.models.sources.spec import OLLAMA_PREFIX, Store, hub_model, pull, store_of
from slipstream.tasks.options import check_search


@dataclass(frozen=True, slots=True)
class ModelFile:
    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model on this machine. `found.problem` says why it can't be used."""

    found: FoundModel
    store: Store
    disk_bytes: int

    def to_dict(self) -> dict[str, Any]:
        found = self.found
        return {
            "model": found.spec,
            "store": self.store,
            "path": str(found.path),
            "disk_bytes": self.disk_bytes,
            "num_parameters": found.sizes.num_parameters if found.sizes else None,
            "format": found.format,
            "quantisation": found.quantisation,
            "architecture": found.architecture,
            "family": found.family,
            "problem": found.problem,
        }


@dataclass(frozen=True, slots=True)
class ModelDetails:
    spec: str
    store: Store
    path: Path
    facts: ModelFacts
    files: list[ModelFile]
    problems: list[Finding]  # that keep it from being used

    @property
    def quantisation(self) -> str:
        return label(self.facts)

    @property
    def disk_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self.facts) | {
            "schema": "slipstream.show/1",
            "model": self.spec,
            "store": self.store,
            "path": str(self.path),
            "disk_bytes": self.disk_bytes,
            "files": [asdict(file) for file in self.files],
            "problems": [asdict(finding) for finding in self.problems],
        }


@dataclass(frozen=True, slots=True)
class PlannedRemoval:
    """What `run` deletes. Nothing is deleted before."""

    spec: str
    removal: Removal

    @property
    def freed_bytes(self) -> int:
        return self.removal.num_bytes

    def run(self) -> None:
        """Raises SlipstreamError where a file can't be deleted."""
        self.removal.run()

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "slipstream.rm/1",
            "model": self.spec,
            "folder": str(self.removal.root),
            "files": [str(file) for file in self.removal.files],
            "freed_bytes": self.freed_bytes,
        }


def fetch(spec: str, report: Callable[[str], None]) -> Path:
    """Fetches a model, or finds it here. Raises ModelNotFoundError, and BlockedError for files that are not whole."""
    path = pull(spec, report)
    if store_of(spec) != "built-in":  # its hash was checked
        refuse_incomplete(path)
    return path


def list_models(search: Sequence[Path] = ()) -> list[ListedModel]:
    """Models in the hub cache, Ollama's store, the built-in's place and the folders given, by name. Raises UsageError
    for a folder that is not there."""
    check_search(search)
    listed = [
        ListedModel(found, store_of(found.spec), sum(file.num_bytes for file in _files(found.path)))
        for found in find(search)
    ]
    return sorted(listed, key=lambda model: model.found.spec)


def show_model(spec: str) -> ModelDetails:
    """What the files of a model on this machine say, and what is wrong with them. Fetches nothing. Raises
    ModelNotFoundError, and BlockedError for a place without any."""
    store = store_of(spec)
    if store == "built-in" and not cache_path("models", f"{spec}.gguf").is_file():
        raise ModelNotFoundError(f"{spec} is not on this machine. Fetch it: slipstream pull {spec}")
    path = local_place(spec).path.absolute()
    files = _files(path)
    if not files and not path.exists():
        raise ModelNotFoundError(f"{spec} is not on this machine: there is nothing at {path}.")
    problems = blocking(check_weights(path) if path.is_dir() else check_files(path))
    if not files:
        raise BlockedError(problems)
    return ModelDetails(spec, store, path, describe(spec), files, problems)


def plan_removal(spec: str) -> PlannedRemoval:
    """What would go with a model that was fetched: all revisions of a hub repository, or the one or the file named.

    Raises UsageError for what belongs to the user or to Ollama, and ModelNotFoundError.
    """
    store = store_of(spec)
    if store == "path":
        raise UsageError(f"{spec} is a path, and rm removes only what Slipstream fetched: delete it yourself")
    if store == "ollama":
        raise UsageError(f"{spec} belongs to Ollama. Remove it there: ollama rm {spec.removeprefix(OLLAMA_PREFIX)}")
    if store == "built-in":
        return PlannedRemoval(spec, builtin_removal(spec))
    model = hub_model(spec)
    names = {part.as_posix() for part in parts(Path(model.file))} if model.file else None
    return PlannedRemoval(spec, hub_removal(model, names))


def _files(path: Path) -> list[ModelFile]:
    """The files of a folder, or all parts of a GGUF file; those that are not there are left out."""
    try:
        paths = sorted(path.iterdir()) if path.is_dir() else parts(path)
        return [ModelFile(file.name, file.stat().st_size) for file in paths if file.is_file()]
    except OSError as error:
        raise cannot_read(path, error) from error
