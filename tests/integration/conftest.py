from __future__ import annotations

from pathlib import Path

import pytest
import transformers

import slipstream
from contract import tiny_models
from slipstream.backends.torch.options import TorchOptions


@pytest.fixture(scope="session")
def tiny_references() -> dict[str, transformers.PreTrainedModel]:
    """A random transformers model of each family, in float32."""
    return {family: tiny_models.make_model(family) for family in tiny_models.FAMILIES}


@pytest.fixture(scope="session")
def tiny_folders(
    tiny_references: dict[str, transformers.PreTrainedModel], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The same models, saved."""
    return {
        family: tiny_models.save_folder(model, tmp_path_factory.mktemp(family))
        for family, model in tiny_references.items()
    }


@pytest.fixture(scope="session")
def smollm2() -> slipstream.LoadedModel:
    return tiny_models.load_smollm2()


@pytest.fixture(scope="session")
def smollm2_in_floats() -> slipstream.LoadedModel:
    """Its weights unpacked to fp32: what transformers computes with."""
    return slipstream.load_model("smollm2-135m", TorchOptions(device="cpu", activations="fp"))
