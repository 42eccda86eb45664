"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipstream.errors import SlipstreamError, UsageError
from slipstream.measurement import report
from slipstream.tasks.settings_file import FileSettings, write_settings
from slipstream.writing import PRIVATE, commented, refuse_unwritable, write_result, write_whole


@contextmanager
def full_disk(num_bytes: int = 4096) -> Iterator[None]:
    """No file can grow beyond `num_bytes`: a write fails in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    path.write_text("old")
    with full_disk(), pytest.raises(SlipstreamError, match=r"out\.html can't be written: File too large"):
        write_result(path, "new" * 10_000)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_report_and_the_settings_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    html, settings = tmp_path / "out.html", tmp_path / "slipstream.yaml"
    monkeypatch.setattr(report, "render", lambda result: "new" * 10_000)
    for path, write in (
        (html, lambda: report.write_report({}, html)),
        (settings, lambda: write_settings(FileSettings("m"), settings, ["long" * 2_000])),
    ):
        path.write_text("old")
        with full_disk(), pytest.raises(SlipstreamError, match="can't be written"):
            write()
        assert path.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [html, settings]


def test_a_missing_folder_is_made_and_permissions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "out.txt"
    write_whole(path, "secret", PRIVATE)
    assert path.stat().st_mode & 0o777 == PRIVATE
    write_whole(path, "again")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("again", PRIVATE)


def test_a_link_is_followed_and_a_device_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"
    write_whole(Path(os.devnull), "text")
    assert not Path(os.devnull).is_file()


def test_a_place_that_can_not_be_written_is_refused_before_anything_is(tmp_path: Path) -> None:
    for path in (tmp_path / "new", tmp_path / "a" / "b", Path(os.devnull)):
        refuse_unwritable(path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="is a folder: name a file"):
        refuse_unwritable(tmp_path)
    (tmp_path / "file").write_text("")
    for path, folder in ((tmp_path / "file" / "x", tmp_path / "file"), (Path("/proc/nowhere/x"), "/proc")):
        with pytest.raises(SlipstreamError, match=rf"{path} can't be written: .* \({folder}\)"):
            refuse_unwritable(path)


def test_a_comment_does_not_end_at_a_line_break_inside() -> None:
    assert commented(["on org/x\necho INJECTED", "two"]) == "# on org/x echo INJECTED\n# two\n"
