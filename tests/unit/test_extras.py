from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest

from slipstream.extras import install_command


def installed(monkeypatch: pytest.MonkeyPatch, noted: str | None) -> None:
    """As if pip had noted this of where Slipstream came from."""

    class Installed:
        def read_text(self, name: str) -> str | None:
            return noted if name == "direct_url.json" else None

    monkeypatch.setattr(Distribution, "from_name", lambda name: Installed())


def test_from_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    installed(monkeypatch, json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}}))
    assert install_command("server") == f"pip install -e '{folder}[server]'"
    installed(monkeypatch, json.dumps({"url": folder.as_uri(), "dir_info": {}}))
    assert install_command("server") == f"pip install '{folder}[server]'"


def test_from_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, json.dumps({"url": "https://example.org/s.git", "vcs_info": {"vcs": "git"}}))
    assert install_command("llamacpp") == "pip install 'slipstream[llamacpp] @ git+https://example.org/s.git'"


@pytest.mark.parametrize("noted", [None, "", "{", "[]", '{"url": "file:///not/there", "dir_info": {}}'])
def test_from_an_index_or_who_knows_where(monkeypatch: pytest.MonkeyPatch, noted: str | None) -> None:
    installed(monkeypatch, noted)
    assert install_command("server") == "pip install 'slipstream[server]'"


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> Distribution:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(Distribution, "from_name", not_installed)
    assert install_command("server") == "pip install 'slipstream[server]'"
