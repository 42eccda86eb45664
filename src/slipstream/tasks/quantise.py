"""Writes a model as a quantised GGUF file, or a draft head as a folder in 8 bits."""

from __future__ import annotations

from pathlib import Path

from slipstream.errors import UsageError
from slipstream.model_files.head_checks import is_head
from slipstream.models import open_checkpoint
from slipstream.models.draft_heads.files import open_head
from slipstream.models.draft_heads.quantise import quantise_head
from slipstream.models.gguf.quantise import QuantisedFile
from slipstream.models.gguf.quantise import quantise as quantise_checkpoint
from slipstream.models.sources.spec import locate
from slipstream.tasks.reporter import SILENT, Reporter

HEAD_TYPE = "q8_0"


def quantise(model: str, path: Path, kind: str | None = None, reporter: Reporter = SILENT) -> QuantisedFile:
    """`path` must not exist. `kind`: None is q4_0, of a head q8_0. Raises UsageError, ModelError."""
    if is_head(model):
        return _head(model, path, kind or HEAD_TYPE, reporter)
    checkpoint = open_checkpoint(model)
    kind = kind or "q4_0"
    reporter.say(f"writing {checkpoint.name} to {path} as {kind}")
    return quantise_checkpoint(checkpoint, path, kind)


def _head(spec: str, folder: Path, kind: str, reporter: Reporter) -> QuantisedFile:
    if kind != HEAD_TYPE:
        raise UsageError(f"--to {kind!r}; draft heads are quantised to {HEAD_TYPE}")
    place = locate(spec)
    head = open_head(place.path, place.name)
    reporter.say(f"writing the head {head.name} to {folder} as {kind}")
    return QuantisedFile(folder, kind, len(head.stored), quantise_head(head, folder))
