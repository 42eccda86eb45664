from __future__ import annotations

from pathlib import Path

import pytest

from contract import tiny_models


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved model of each family."""
    return {
        family: tiny_models.save_folder(tiny_models.make_model(family), tmp_path_factory.mktemp(family))
        for family in tiny_models.FAMILIES
    }
