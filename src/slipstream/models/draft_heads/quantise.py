"""A draft head with its products in 8 bits: half the file, and half the time to read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.models.draft_heads.export import HeadNotes, save_head
from slipstream.models.draft_heads.files import HeadCheckpoint
from slipstream.models.draft_heads.layouts import ID_MAP, OWN_KEY, head_tensors
from slipstream.models.files import read_json


def quantise_head(head: HeadCheckpoint, folder: Path) -> int:
    """Writes a folder that must not exist; returns the bytes of its weights. Raises UsageError, ModelError."""
    tensors = {name: head.tensor(name) for name in head_tensors(head.config)}
    token_ids = head.token_ids() if ID_MAP in head.stored else None
    save_head(folder, head.config, tensors, token_ids, "int8", _notes(head.path))
    return (folder / "model.safetensors").stat().st_size


def _notes(path: Path) -> HeadNotes:
    """What is kept beside the weights, as far as the head has it."""
    values, card = read_json(path / "config.json"), path / "README.md"
    speculators = _object(values, "speculators_config")
    architectures = _object(speculators, "verifier").get("architectures")
    methods = speculators.get("proposal_methods")
    method = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    return HeadNotes(
        target_architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else None,
        draft_length=int(method.get("speculative_tokens", HeadNotes().draft_length)),
        training=_object(_object(values, OWN_KEY), "training") or None,
        card=card.read_text(encoding="utf-8") if card.is_file() else None,
    )


def _object(values: dict[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}
