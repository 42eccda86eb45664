"""Hugging Face repositories: from the hub library's cache if possible, else downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import DamagedModelError, ModelError, ModelNotFoundError
from slipstream.models.files import read_json

Report = Callable[[str], None]

# Pickled weights (.bin, .pt) can run code when loaded; they are never downloaded.
FOLDER_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer.model", "*.jinja"]
FOLDER_EXCLUSIONS = ["*/*", "consolidated*"]  # second copies of the weights, in their authors' own layout


@dataclass(frozen=True, slots=True)
class HubModel:
    repo: str  # ORG/NAME
    file: str | None  # a GGUF file in it, or the whole folder
    revision: str | None

    def __str__(self) -> str:
        file = f":{self.file}" if self.file else ""
        return f"{self.repo}{file}{f'@{self.revision}' if self.revision else ''}"


def fetch_from_hub(model: HubModel, report: Report) -> Path:
    """The cached folder or file of a hub model. Raises ModelNotFoundError, which says what was tried and what to do."""
    cached = _snapshot(model, local_only=True)
    if cached is not None and _is_complete(cached, model):
        return _target(cached, model)
    report(f"Downloading {model} from the Hugging Face hub")
    folder = _snapshot(model, local_only=False)
    if folder is None or not _is_complete(folder, model):
        missing = "config.json with safetensors weights. If it holds GGUF files, name one: ORG/NAME:FILE.gguf."
        if model.file:
            missing = f"file {model.file!r}."
        raise ModelNotFoundError(f"The hub repository {model.repo} has no {missing}")
    return _target(folder, model)


def _snapshot(model: HubModel, *, local_only: bool) -> Path | None:
    """The snapshot folder; None if only the cache was searched and does not have it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = snapshot_download(
            model.repo,
            revision=model.revision,
            allow_patterns=[model.file] if model.file else FOLDER_PATTERNS,
            ignore_patterns=None if model.file else FOLDER_EXCLUSIONS,
            local_files_only=local_only,
        )
    except HFValidationError as error:
        raise ModelNotFoundError(f"{model.repo!r} is not a valid hub id: {error}") from error
    except Exception as error:  # the library passes on errors of its HTTP client, with changing names
        if local_only:
            return None
        raise _fetch_error(model, error) from error
    return Path(folder)


def _fetch_error(model: HubModel, error: Exception) -> ModelError:
    reasons = {
        "GatedRepoError": "it is gated: accept its terms on the hub and log in with `hf auth login`",
        "RepositoryNotFoundError": "no such repository, or it is private: check the name, or `hf auth login`",
        "RevisionNotFoundError": f"it has no revision {model.revision!r}",
    }
    first_line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    offline = f"the hub can't be reached ({first_line}): check the network, or use the path of a local model"
    reason = reasons.get(type(error).__name__, offline)
    return ModelNotFoundError(f"{model} is not in the local hub cache and could not be downloaded: {reason}.")


def _target(folder: Path, model: HubModel) -> Path:
    return folder / model.file if model.file else folder


def _is_complete(folder: Path, model: HubModel) -> bool:
    """Whether a snapshot has all needed files; an interrupted or partial download does not."""
    if model.file:
        return (folder / model.file).is_file()
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    try:
        shards = set(dict(read_json(index).get("weight_map", {})).values())
    except (DamagedModelError, TypeError, ValueError):
        return True  # complete but wrong: the reader has the better error
    return all((folder / str(shard)).is_file() for shard in shards)
