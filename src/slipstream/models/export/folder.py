"""export_folder: any checkpoint as a Hugging Face folder, which vLLM, SGLang and transformers load.

The folder appears complete or not at all: it is written under a temporary name and renamed at the end.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import UsageError
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.export.config import config_json, generation_json, write_json
from slipstream.models.export.tokenizer import save_tokenizer
from slipstream.models.export.weights import STORED_AS, StoredKind, weight_bytes, write_weights

SIDE_FILES_BYTES = 64 << 20  # the size of a large tokenizer.json


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    folder: Path
    kind: StoredKind
    num_tensors: int
    num_bytes: int


def export_folder(checkpoint: Checkpoint, folder: Path, kind: StoredKind = "bf16") -> Exported:
    """Writes weights, configuration and tokenizer. `fp32` keeps dequantised weights exactly, `bf16` rounds them.

    Raises UnsupportedModelError for a model that a folder can't represent, and UsageError for a path that exists, can't
    be written or has too little space. Nothing is left behind in these cases.
    """
    if kind not in STORED_AS:
        raise UsageError(f"weights can't be stored as {kind!r}; expected {', '.join(STORED_AS)}")
    config = config_json(checkpoint, STORED_AS[kind].torch_name)  # raises before anything is written
    num_bytes = weight_bytes(checkpoint.config, kind)
    with new_folder(folder, num_bytes + SIDE_FILES_BYTES) as scratch:
        write_json(scratch / "config.json", config)
        write_json(scratch / "generation_config.json", generation_json(checkpoint.tokenizer))
        save_tokenizer(checkpoint.tokenizer, checkpoint.config.context_length, scratch)
        num_tensors = write_weights(checkpoint, scratch / "model.safetensors", kind)
    return Exported(folder, kind, num_tensors, num_bytes)


@contextmanager
def new_folder(folder: Path, num_bytes: int) -> Iterator[Path]:
    """A scratch folder that becomes `folder` at the end, or nothing at all."""
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} already exists; use another folder, or remove it first.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < num_bytes:
            raise UsageError(
                f"{folder} needs {num_bytes / 1e9:.1f} GB, but its disk has {free / 1e9:.1f} GB free. Free some "
                "space, or use a folder on another disk."
            )
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        try:
            yield scratch
            scratch.chmod(0o755)  # mkdtemp's folders are for their owner only
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise UsageError(
            f"can't write {folder}: {error.strerror or error}. Free some space, or use another folder."
        ) from error
