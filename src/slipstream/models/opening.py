"""open_checkpoint: from a spec to a checked Checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.models.sources.spec import locate

if TYPE_CHECKING:
    from slipstream.models.checkpoint import Checkpoint


def open_checkpoint(spec: str | Path) -> Checkpoint:
    """Resolves a spec, reads the headers and checks that every needed tensor is there. Reads no weights.

    Raises ModelError subclasses. The formats of a spec are listed in `slipstream.models.sources.spec`.
    """
    place = locate(spec)
    if place.path.is_dir():
        from slipstream.models.hf.checkpoint import open_folder

        return open_folder(place.path, place.name)
    from slipstream.models.gguf.checkpoint import open_gguf

    return open_gguf(place.path, place.name)
