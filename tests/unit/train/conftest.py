"""A tiny target whose text can be learned: it was taught to continue sentences of a small grammar."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract import tiny_models


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random model of each family, saved."""
    return {
        family: tiny_models.save_folder(
            tiny_models.make_model(family, num_hidden_layers=6), tmp_path_factory.mktemp(family)
        )
        for family in tiny_models.FAMILIES
    }
