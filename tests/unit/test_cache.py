"""The cache folder: where it is, what is trusted in it, and machines that have none."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from slipstream.cache import cache_folder, cache_path, private_folder, read_private
from slipstream.catalogue import model_scan
from slipstream.engines.detached import detached_engines
from slipstream.errors import ModelNotFoundError, SlipstreamError
from slipstream.models.sources.spec import locate

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a container that runs under a number which its user database does not know."""

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("HOME", "SLIPSTREAM_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("no_home")
def test_no_home_is_one_clear_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for use in (cache_path, cache_folder, private_folder):
        with pytest.raises(SlipstreamError, match=r"no home folder.*SLIPSTREAM_CACHE"):
            use("models")
    with pytest.raises(SlipstreamError, match="SLIPSTREAM_CACHE"):
        locate("smollm2-135m")
    with pytest.raises(ModelNotFoundError, match="ollama pull x"):
        locate("ollama:x")
    with pytest.raises(ModelNotFoundError, match="'~/x' does not exist"):
        locate("~/x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_home")
def test_without_a_home_models_are_still_found(tmp_path: Path) -> None:
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    assert [candidate.path.name for candidate in model_scan.find([tmp_path])] == ["damaged.gguf"]


def test_a_user_that_does_not_exist() -> None:
    with pytest.raises(ModelNotFoundError, match="'~no-such-user/x' does not exist"):
        locate("~no-such-user/x")


def test_looking_makes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    assert detached_engines() == []
    assert list(model_scan._built_in()) == []
    assert not (tmp_path / "cache").exists()


def test_a_tilde_in_the_variable_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLIPSTREAM_CACHE", "~/cache")
    assert cache_folder("x") == tmp_path / "cache" / "x"


def test_a_private_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    (tmp_path / "x").mkdir()
    (tmp_path / "x").chmod(0o777)
    assert stat.S_IMODE(private_folder("x").stat().st_mode) == 0o755


@as_root
def test_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    os.chown(cache_folder("x"), 54321, -1)
    with pytest.raises(SlipstreamError, match=r"another user.*SLIPSTREAM_CACHE"):
        private_folder("x")


def test_only_a_private_file_is_read(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    assert read_private(path) is None
    path.write_bytes(b"data")
    link.symlink_to(path)
    assert (read_private(path), read_private(link), read_private(tmp_path)) == (b"data", None, None)
    for mode in (0o664, 0o646):
        path.chmod(mode)
        assert read_private(path) is None


@as_root
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    os.chown(tmp_path / "file", 54321, -1)
    assert read_private(tmp_path / "file") is None
