"""NaN in a model ends the streams that meet it, with an error that names the weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contract import nan_model, tiny_models
from slipstream.core.engine import Engine
from slipstream.errors import NonFiniteLogitsError
from slipstream.models import open_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nan_model.save(tmp_path_factory.mktemp("nan"))


@pytest.mark.parametrize("load", [tiny_models.load_native, tiny_models.load_reference], ids=["native", "reference"])
def test_a_token_with_nan_fails_its_own_stream(load, folder):
    nan_model.assert_poison_stays_in_its_streams(load(folder), folder)


def test_finite_weights_that_overflow_are_told_from_a_damaged_file(tmp_path):
    model = tiny_models.make_model("llama2-mha")
    with torch.no_grad():
        model.lm_head.weight *= 1e38
    folder = tiny_models.save_folder(model, tmp_path)
    engine = Engine(tiny_models.load_native(folder), open_checkpoint(folder).tokenizer)
    with pytest.raises(NonFiniteLogitsError, match=r"all its weights are finite.*overflowed in fp32") as raised:
        engine.generate([1, 2]).result()
    assert "dtype fp32" not in str(raised.value)
