"""Finds the models on this machine in folders and stores, and reads their headers and vocabularies.

Results are cached by path, size and modification time. An unreadable file is listed with the reason; it never stops the
scan.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.cache import cache_folder, cache_path
from slipstream.catalogue.families import recognise
from slipstream.errors import ModelError, SlipstreamError
from slipstream.findings import blocking
from slipstream.models.files import expand_home
from slipstream.models.sources.builtin import BUILTINS
from slipstream.models.sources.spec import HUB_SPEC
from slipstream.models.text.vocabulary import is_filler
from slipstream.predict.sizes import Sizes
from slipstream.vocabularies.token_strings import fingerprint, token_strings
from slipstream.writing import write_whole

CACHE_SCHEMA = 3  # increase it when the cached values change their meaning
MAX_ENTRIES = 50_000  # limit of files checked per folder; a whole disk is not a folder of models
NOT_MODELS = ("mmproj", "adapter", "lora")  # parts of the names of GGUF files that are not models
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model that was found. `spec` is its name on the command line; `problem` says why it can't be used."""

    spec: str
    path: Path
    sizes: Sizes | None = None
    architecture: str | None = None
    vocabulary: str | None = None  # fingerprint
    num_tokens: int = 0
    family: str | None = None  # of the vocabulary, if it is a known one
    problem: str | None = None
    format: str | None = None  # "gguf", "safetensors", …
    quantisation: str | None = None  # "GGUF Q4_K_M", "AWQ 4 bits", "not quantised (BF16)"


# -- finding ----------------------------------------------------------------------------------------------------------


def find(search: Sequence[Path] = (), *, stores: bool = True, beside: Path | None = None) -> list[FoundModel]:
    """Models below the given folders, in the folder that holds `beside` (not below it) and, with `stores`, in the hub
    cache, Ollama's store and the built-in's place.

    Each model once, with the first name found. Downloads nothing.
    """
    places: dict[Path, tuple[str, Path]] = {}  # by real path; read by the path found, which names parts of a split file
    for spec, path in (*_in_folders(search), *_beside(beside), *(_in_stores() if stores else ())):
        places.setdefault(path.resolve(), (spec, path.absolute()))
    with _Memory.open() as memory:
        return [memory.candidate(spec, path) for spec, path in places.values()]


def candidate(spec: str) -> FoundModel:
    """One model by its spec. Raises ModelNotFoundError if it does not exist."""
    from slipstream.model_files.local_models import local_place

    place = local_place(spec)
    with _Memory.open() as memory:
        return memory.candidate(spec, place.path.absolute())


def _in_folders(search: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    for root in search:
        root = expand_home(root)
        for path in [root, *_below(root)] if root.is_dir() else [root]:
            if _is_model(path):
                yield str(path), path


def _beside(model: Path | None) -> Iterator[tuple[str, Path]]:
    try:
        paths = sorted(model.parent.iterdir()) if model and model.exists() else []
    except (OSError, ValueError):  # no permission to read the folder, or not a valid file name
        paths = []
    yield from ((str(path), path) for path in paths if _is_model(path))


def _below(root: Path) -> list[Path]:
    found = []
    try:
        for number, path in enumerate(root.rglob("*")):
            if number >= MAX_ENTRIES:
                break
            found.append(path)
    except OSError:  # no permission to read the folder
        pass
    return sorted(found)


def _is_model(path: Path) -> bool:
    try:
        if path.is_dir():
            return (path / "config.json").is_file() and any(any(path.glob(kind)) for kind in WEIGHTS)
        is_part = not _is_first_part(path.name) or any(word in path.name.lower() for word in NOT_MODELS)
        return path.suffix == ".gguf" and not is_part and path.is_file()
    except OSError:
        return False


def _is_first_part(name: str) -> bool:
    return "-of-" not in name or "-00001-of-" in name


def _in_stores() -> Iterator[tuple[str, Path]]:
    yield from _built_in()
    yield from _in_ollama()
    yield from _in_hub_cache()


def _built_in() -> Iterator[tuple[str, Path]]:
    try:
        folder = cache_path("models")
    except SlipstreamError:  # no home folder, so no store
        return
    for name in BUILTINS:
        path = folder / f"{name}.gguf"
        if path.is_file():
            yield name, path


def _in_ollama() -> Iterator[tuple[str, Path]]:
    from slipstream.models.sources.ollama import find_ollama_model, installed_models

    for name in installed_models():
        try:
            yield f"ollama:{name}", find_ollama_model(name)
        except ModelError:  # a manifest without its blob, left over by Ollama
            continue


def _in_hub_cache() -> Iterator[tuple[str, Path]]:
    from huggingface_hub import constants

    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        repo, snapshot = folder.name.removeprefix("models--").replace("--", "/", 1), _snapshot(folder)
        if snapshot is None:
            continue
        named = {repo: snapshot} | {f"{repo}:{file.name}": file for file in sorted(snapshot.glob("*.gguf"))}
        for name, path in named.items():
            if _is_model(path):
                yield name if HUB_SPEC.fullmatch(name) else str(path), path  # repositories like "gpt2" have no org


def _snapshot(folder: Path) -> Path | None:
    """The snapshot that `main` points to, else the newest."""
    try:
        named = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
        if named.is_dir():
            return named
    except OSError:
        pass
    return max((folder / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime, default=None)


# -- reading, with a cache --------------------------------------------------------------------------------------------


def read_candidate(spec: str, path: Path) -> FoundModel:
    """Reads one model's headers and vocabulary. `problem` says what is wrong with it; raises nothing."""
    from slipstream.model_files.model_facts import describe
    from slipstream.model_files.quantisation import label
    from slipstream.model_files.weights import check_files, check_weights

    found = FoundModel(spec, path)
    try:
        findings = check_weights(path) if path.is_dir() else check_files(path)
        if problems := blocking(findings):
            return replace(found, problem=problems[0].evidence)
        facts = describe(path)
        if facts.draft_head:
            made_for = facts.made_for or "a target that it does not name"
            return replace(
                found, problem=f"a draft head ({facts.draft_head}) for {made_for}: --draft {spec} --drafter head"
            )
        strings = token_strings(path)
        family = recognise(strings)
        return replace(
            found,
            sizes=replace(Sizes.of(facts), name=short_name(spec)),
            architecture=facts.architecture,
            vocabulary=fingerprint(strings),
            num_tokens=sum(not is_filler(text) for text in strings),
            family=family.name if family else None,
            format=facts.format,
            quantisation=label(facts),
        )
    except ModelError as error:
        return replace(found, problem=str(error))
    except Exception as error:  # a damaged file may raise anything; the other models must still be listed
        return replace(found, problem=f"reading it failed with {type(error).__name__}: {error}")


def short_name(spec: str) -> str:
    if spec.startswith("ollama:"):
        return spec.removeprefix("ollama:")
    return spec.rstrip("/").rpartition("/")[2].removesuffix(".gguf")


class _Memory:
    """Results of earlier scans, in the user's cache folder. If it can't be read or written, the scan only takes
    longer.
    """

    def __init__(self, path: Path | None, entries: dict[str, Any]) -> None:
        self._path = path
        self._entries = entries
        self._changed = False

    @classmethod
    def open(cls) -> _Memory:
        try:
            path = cache_folder("doctor") / "models.json"
            data = json.loads(path.read_text())
            return cls(path, dict(data["entries"]) if data.get("schema") == CACHE_SCHEMA else {})
        except SlipstreamError:
            return cls(None, {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path, {})

    def __enter__(self) -> _Memory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is None or not self._changed:
            return
        with contextlib.suppress(OSError):  # the next scan reads the models again
            write_whole(self._path, json.dumps({"schema": CACHE_SCHEMA, "entries": self._entries}))

    def candidate(self, spec: str, path: Path) -> FoundModel:
        try:
            stamp = _stamp(path)
        except OSError:  # deleted, or no permission to read it
            return read_candidate(spec, path)
        entry = self._entries.get(str(path))
        if isinstance(entry, dict) and entry.get("stamp") == stamp:
            try:
                return _restored(spec, path, entry["read"])
            except (KeyError, TypeError):  # edited by hand
                pass
        found = read_candidate(spec, path)
        self._entries[str(path)] = {"stamp": stamp, "read": _stored(found)}
        self._changed = True
        return found


def _stamp(path: Path) -> list[list[Any]]:
    """Name, size and modification time of every file of a model."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [[file.name, (stat := file.stat()).st_size, stat.st_mtime_ns] for file in files if file.exists()]


def _stored(found: FoundModel) -> dict[str, Any]:
    return {key: value for key, value in asdict(found).items() if key not in ("spec", "path")}


def _restored(spec: str, path: Path, read: dict[str, Any]) -> FoundModel:
    sizes = Sizes.from_dict(read["sizes"] | {"name": short_name(spec)}) if read["sizes"] else None
    return FoundModel(spec, path, **(read | {"sizes": sizes}))
