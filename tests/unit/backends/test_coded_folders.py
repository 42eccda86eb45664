"""Folders quantised with GPTQ, AWQ and compressed-tensors on the torch backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import slipstream
from contract import tiny_models
from slipstream.backends.torch.model import TorchModel
from slipstream.backends.torch.options import TorchOptions
from slipstream.errors import DamagedModelError, ModelError
from slipstream.load_checks import check_model
from tiny_coded import CASES, WEIGHTS, Case, save_both


def score(model: TorchModel) -> np.ndarray:
    return tiny_models.last_row(model, [3, 4, 5, 40, 41, 300])


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_logits_are_those_of_the_same_weights_in_float32(case: Case, tmp_path: Path) -> None:
    coded, floats, _ = save_both(case, tmp_path)
    exact = score(tiny_models.load_native(floats))
    np.testing.assert_array_equal(score(tiny_models.load_native(coded, activations="fp")), exact)
    np.testing.assert_array_equal(score(tiny_models.load_reference(coded)), score(tiny_models.load_reference(floats)))
    model = tiny_models.load_native(coded)
    assert model.info.dtype == "int8"
    off = score(model) - exact
    assert np.sqrt(np.mean(off**2)) < 0.05 * exact.std() and off.any()
    assert np.corrcoef(score(model), exact)[0, 1] > 0.999


@pytest.mark.parametrize("name", ["gptq", "awq", "packed", "int8 by row"])
def test_they_generate_the_same_with_and_without_drafts(name: str, tmp_path: Path) -> None:
    folder, _, _ = save_both(CASES[name], tmp_path)
    assert check_model(folder) == []
    model = slipstream.load_model(folder, TorchOptions(device="cpu"))
    limits = slipstream.Limits(24, ignore_eos=True)
    plain = slipstream.load(model, drafter="none").generate([5, 6, 7, 5, 6], limits=limits).result()
    drafted = slipstream.load(model, drafter="ngram", policy="fixed(3)").generate([5, 6, 7, 5, 6], limits=limits)
    assert len(plain.tokens) == 24 and drafted.result().tokens == plain.tokens


def test_scales_that_are_no_numbers_are_found_before_loading_and_refused(tmp_path: Path) -> None:
    folder, _, _ = save_both(CASES["awq"], tmp_path)
    tensors = load_file(folder / WEIGHTS)
    tensors["model.layers.1.mlp.down_proj.scales"][0, 3] = float("nan")
    save_file(tensors, folder / WEIGHTS)
    (finding,) = check_model(folder)
    assert finding.id == "weights-nonfinite" and "down_proj.scales" in finding.evidence
    with pytest.raises(ModelError, match=r"down_proj\.scales"):
        slipstream.load_model(folder, TorchOptions(device="cpu"))
    with pytest.raises(DamagedModelError, match=r"down_proj\.scales"):
        tiny_models.load_native(folder)


def test_huge_scales_run_to_the_end(tmp_path: Path) -> None:
    folder, _, _ = save_both(CASES["gptq"], tmp_path)
    tensors = load_file(folder / WEIGHTS)
    tensors["model.layers.1.mlp.down_proj.scales"].fill_(65504.0)
    save_file(tensors, folder / WEIGHTS)
    model = tiny_models.load_native(folder)
    assert np.isfinite(score(model)).all() or "overflowed in int8" in model.diagnose()
