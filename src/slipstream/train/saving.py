"""Writes what was trained as a folder; what was there of an earlier save is replaced as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from slipstream.models.checkpoint import RawTensor
from slipstream.writing import named_errors


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A place that becomes `path` at the end. A crash leaves the old file or folder or the new one, at worst under the
    hidden name of a scratch place, which no file of the user's has."""
    scratch, old = (path.with_name(f".{path.name}.slipstream-{end}") for end in ("new", "old"))
    with named_errors(path):
        for rest in (scratch, old):
            _remove(rest)
        yield scratch
        if path.exists():
            path.rename(old)
        scratch.rename(path)
        _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def in_bf16(tensor: torch.Tensor) -> RawTensor:
    bits = tensor.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint16)
    return RawTensor("BF16", bits.numpy())
