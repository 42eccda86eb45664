"""Writes a trained head as a folder; what was there of an earlier save is replaced as a whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream.models.head_config import HeadConfig
from slipstream.train.vocabulary import DraftVocabulary
from slipstream.writing import write_whole

_TYPES = {np.dtype(np.uint16): "BF16", np.dtype(np.int64): "I64", np.dtype(np.bool_): "BOOL"}


def save_head(
    folder: Path,
    config: HeadConfig,
    tensors: Mapping[str, torch.Tensor],
    vocabulary: DraftVocabulary,
    training: Mapping[str, Any],
    card: str,
) -> None:
    """config.json, model.safetensors in bf16 with the id maps, README.md."""
    arrays: dict[str, npt.NDArray[Any]] = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint16).numpy()
        for name, tensor in tensors.items()
    }
    if not vocabulary.is_full:
        arrays |= {"d2t": vocabulary.d2t(), "t2d": vocabulary.t2d()}
    scratch = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    write_whole(scratch / "model.safetensors", _safetensors(arrays))
    write_whole(scratch / "config.json", json.dumps({**asdict(config), "training": dict(training)}, indent=1))
    write_whole(scratch / "README.md", card)
    _replace(folder, scratch)


def _replace(folder: Path, scratch: Path) -> None:
    """A crash between the two renames leaves both folders under other names, and nothing is lost."""
    old = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _safetensors(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        entries[name] = {"dtype": _TYPES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    return b"".join([len(header).to_bytes(8, "little"), header, *(array.tobytes() for array in arrays.values())])
