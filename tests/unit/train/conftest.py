"""Tiny targets: random ones of each family, and one whose next token follows mostly from the last, so that there is
something to learn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contract import tiny_models


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tiny products are slower with several."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random model of each family, saved."""
    return {
        family: tiny_models.save_folder(
            tiny_models.make_model(family, num_hidden_layers=6), tmp_path_factory.mktemp(family)
        )
        for family in tiny_models.FAMILIES
    }


@pytest.fixture(scope="session")
def learnable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of six layers that change little: it writes by the embedding of the last token."""
    model = tiny_models.make_model("llama2-mha", num_hidden_layers=6)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight *= 0.1
        model.lm_head.weight *= 4  # sure of what follows
    return tiny_models.save_folder(model, tmp_path_factory.mktemp("learnable"))
