"""The torch backend under the Model contract: every family on the compiled kernels, some in plain torch too."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from contract import tiny_models
from contract.model_contract import ModelContract
from slipstream.backends.torch.model import TorchModel
from slipstream.core.protocols import ScoreRequest
from slipstream.core.tree import ROOT, DraftTree
from slipstream.errors import ContextFullError, UsageError
from tiny_coded import CASES, save_both


class TestNative(ModelContract):
    @pytest.fixture(scope="class", params=tiny_models.FAMILIES)
    @classmethod
    def model(cls, request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> TorchModel:
        return tiny_models.load_native(tiny_folders[request.param])


class TestNativeIn16Bits(ModelContract):
    num_seeds = 2

    @pytest.fixture(scope="class", params=["bf16", "fp16"])
    @classmethod
    def model(cls, request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> TorchModel:
        return tiny_models.load_native(tiny_folders["qwen2-bias-tied"], dtype=request.param)


class TestQuantised(ModelContract):
    """The file's own codes, with 8-bit activations."""

    num_seeds = 2

    @pytest.fixture(scope="class", params=[("llama", "Q4_0"), ("qwen2", "Q4_1"), ("qwen3", "Q5_0"), ("llama", "Q8_0")])
    @classmethod
    def model(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchModel:
        architecture, kind = request.param
        path = tiny_models.save_quantised(architecture, kind, tmp_path_factory.mktemp("quantised"))
        return tiny_models.load_native(path)

    def test_it_says_that_it_keeps_the_codes(self, model: TorchModel) -> None:
        assert model.info.dtype == "int8"


class TestCodedFolder(ModelContract):
    """Scales and minimums that 64 inputs or a whole row have in common."""

    num_seeds = 1

    @pytest.fixture(scope="class", params=["awq", "int8 by row"])
    @classmethod
    def model(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchModel:
        folder, _, _ = save_both(CASES[request.param], tmp_path_factory.mktemp("coded"))
        return tiny_models.load_native(folder)

    def test_it_says_that_it_keeps_the_codes(self, model: TorchModel) -> None:
        assert model.info.dtype == "int8"


class TestCodedCache(ModelContract):
    """Keys and values in 8 bits."""

    num_seeds = 1

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, tmp_path_factory: pytest.TempPathFactory) -> TorchModel:
        random = tiny_models.make_model("mistral-window-8", head_dim=32)
        folder = tiny_models.save_folder(random, tmp_path_factory.mktemp("coded-cache"))
        return tiny_models.load_native(folder, kv_type="q8_0")


class TestPlainTorch(ModelContract):
    tolerance = 2e-4
    num_seeds = 1  # it is slow

    @pytest.fixture(scope="class", params=["llama3-scaled-tied", "mistral-window-8", "qwen3-qk-norm"])
    @classmethod
    def model(cls, request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> TorchModel:
        return tiny_models.load_reference(tiny_folders[request.param])


class TestPlainTorchExact(ModelContract):
    num_seeds = 1

    @pytest.fixture(scope="class", params=["llama2-mha", "qwen2-bias-tied"])
    @classmethod
    def model(cls, request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> TorchModel:
        return tiny_models.load_reference(tiny_folders[request.param], exact=True)


class TestEarlyExit(ModelContract):
    """A model cut after its first layers has weights in common with the whole one, but not its cache."""

    num_seeds = 2

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tiny_folders: dict[str, Path]) -> TorchModel:
        return tiny_models.load_native(tiny_folders["llama2-mha"])

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, whole: TorchModel) -> TorchModel:
        return whole.first_layers(1)

    @pytest.mark.parametrize("layers", [0, 2, 3])
    def test_it_needs_at_least_one_layer_and_fewer_than_all(self, whole: TorchModel, layers: int) -> None:
        with pytest.raises(UsageError):
            whole.first_layers(layers)


@pytest.mark.real_model
class TestFirstLayersOfSmolLM2(ModelContract):
    """Real weights and sizes; the layers that are left out are like these."""

    num_seeds = 1

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> TorchModel:
        return tiny_models.load_smollm2().model.first_layers(3)  # type: ignore[attr-defined, no-any-return]


@pytest.mark.real_model
def test_the_whole_of_smollm2_keeps_the_heart_of_the_contract() -> None:
    model, contract, rng = tiny_models.load_smollm2().model, ModelContract(), np.random.default_rng(0)
    contract.num_seeds, contract.prompt_length = 1, 20
    contract.test_scores_after_a_commit_equal_a_fresh_prefill(model, rng)
    contract.test_a_row_does_not_depend_on_its_company(model, rng)


# -- what the torch backend promises beyond the contract ----------------------------------------------------------


@pytest.fixture(scope="module")
def llama(tiny_folders: dict[str, Path]) -> TorchModel:
    return tiny_models.load_native(tiny_folders["llama2-mha"])


def test_positions_beyond_the_context_are_refused(tiny_folders: dict[str, Path]) -> None:
    model = tiny_models.load_native(tiny_folders["llama2-mha"], context_length=40)
    sequence = model.open()
    model.score([ScoreRequest(sequence, [1] * 38)])
    sequence.commit()
    wide = DraftTree((1, 2, 3, 4), (ROOT,) * 4)  # more nodes than places left, but only one deep
    assert len(model.score([ScoreRequest(sequence, [1], wide)])) == 1
    with pytest.raises(ContextFullError):
        model.score([ScoreRequest(sequence, [1], DraftTree.chain([2, 3]))])
    sequence.close()


def test_the_logits_do_not_depend_on_the_number_of_threads_or_on_which_thread_asks(
    tiny_folders: dict[str, Path], llama: TorchModel
) -> None:
    import torch

    usual = torch.get_num_threads()
    tokens = np.random.default_rng(0).integers(131, size=200).tolist()

    def last_row(model: TorchModel) -> np.ndarray:
        return tiny_models.last_row(model, tokens)

    expected = last_row(llama)
    try:
        single = tiny_models.load_native(tiny_folders["llama2-mha"], threads=1)
        found: list[np.ndarray] = [last_row(single)]
        worker = threading.Thread(target=lambda: found.append(last_row(single)))
        worker.start()
        worker.join()
        found.append(last_row(tiny_models.load_native(tiny_folders["llama2-mha"], threads=2)))
    finally:
        torch.set_num_threads(usual)
        tiny_models.load_native(tiny_folders["llama2-mha"], threads=usual)
    assert len(found) == 3
    for row in found:
        np.testing.assert_array_equal(row, expected)
