"""A save replaces what it made before, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.train.saving import replaced


def save(path: Path, content: str) -> None:
    with replaced(path) as scratch:
        scratch.mkdir()
        (scratch / "weights").write_text(content)


def test_a_save_replaces_the_one_before_it_and_leaves_nothing_else(tmp_path: Path) -> None:
    save(tmp_path / "head", "first")
    save(tmp_path / "head", "second")
    assert (tmp_path / "head" / "weights").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_folders_of_the_user_beside_it_are_kept(tmp_path: Path) -> None:
    for name in ("head.old", "head.new"):
        save(tmp_path / name, name)
    for content in ("first", "second"):
        save(tmp_path / "head", content)
    assert [(tmp_path / name / "weights").read_text() for name in ("head.old", "head.new")] == ["head.old", "head.new"]


def test_a_save_that_fails_keeps_the_one_before_it(tmp_path: Path) -> None:
    save(tmp_path / "head", "first")
    with pytest.raises(ZeroDivisionError), replaced(tmp_path / "head") as scratch:
        scratch.mkdir()
        raise ZeroDivisionError
    assert (tmp_path / "head" / "weights").read_text() == "first"
    save(tmp_path / "head", "second")
    assert [path.name for path in tmp_path.iterdir()] == ["head"]
