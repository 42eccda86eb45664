"""Files that were read are remembered until they change."""

from __future__ import annotations

import os
import time
from pathlib import Path

from slipstream.models.files import per_file


def test_a_file_is_read_again_only_after_a_change(tmp_path: Path) -> None:
    file, reads = tmp_path / "a.gguf", []

    @per_file
    def read(path: Path) -> str:
        reads.append(path)
        return path.read_text()

    file.write_text("new")
    assert (read(file), read(file)) == ("new", "new") and len(reads) == 2  # it was written just now
    old = time.time() - 60
    os.utime(file, (old, old))
    assert (read(file), read(file)) == ("new", "new") and len(reads) == 3
    file.write_text("newer")
    assert read(file) == "newer"
    os.utime(file, (old + 1, old + 1))
    assert (read(file), read(file)) == ("newer", "newer") and len(reads) == 5


def test_folders_are_always_read(tmp_path: Path) -> None:
    reads = []
    read = per_file(lambda path: reads.append(path))
    read(tmp_path), read(tmp_path), read(tmp_path / "missing")
    assert len(reads) == 3
