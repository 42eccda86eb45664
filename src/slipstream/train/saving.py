"""Writes a trained head as a folder; what was there of an earlier save is replaced as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from slipstream.models import head_export
from slipstream.models.checkpoint import RawTensor
from slipstream.models.head_config import HeadConfig
from slipstream.train.vocabulary import DraftVocabulary


def save_head(
    folder: Path,
    config: HeadConfig,
    tensors: Mapping[str, torch.Tensor],
    vocabulary: DraftVocabulary,
    training: Mapping[str, Any],
    card: str,
) -> None:
    """In bf16, with its card. A crash leaves the old head or the new one, at worst under another name."""
    scratch, old = (folder.with_name(f"{folder.name}.{end}") for end in ("new", "old"))
    for rest in (scratch, old):
        shutil.rmtree(rest, ignore_errors=True)
    raw = {name: _raw(tensor) for name, tensor in tensors.items()}
    notes = head_export.HeadNotes(training=training, card=card)
    head_export.save_head(scratch, config, raw, None if vocabulary.is_full else vocabulary.ids, notes=notes)
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _raw(tensor: torch.Tensor) -> RawTensor:
    bits = tensor.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint16)
    return RawTensor("BF16", bits.numpy())
