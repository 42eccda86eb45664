"""The llama.cpp backend under the Model contract: tiny models strictly, SmolLM2 and, where they are, a Qwen pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from contract import tiny_llamacpp
from contract.model_contract import ModelContract
from slipstream.backends.llamacpp.model import LlamaCppModel
from slipstream.core.protocols import Model, ScoreRequest, prefill
from slipstream.core.tree import ROOT, DraftTree
from slipstream.errors import ContextFullError, UnsupportedModelError

pytestmark = pytest.mark.llamacpp

QWEN = Path("~/.cache/slipstream-models").expanduser()


class TestTinyShared(ModelContract):
    """Weights, keys and values in float32: nothing is rounded on the way, so a row that sees one token too many, or
    one in the wrong place, can't hide."""

    tolerance = 1e-4

    @pytest.fixture(scope="class", params=tiny_llamacpp.ARCHITECTURES)
    @classmethod
    def model(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LlamaCppModel:
        return tiny_llamacpp.load(request.param, tmp_path_factory.mktemp(request.param), kv_type="f32")


class TestTinyExact(ModelContract):
    num_seeds = 2

    @pytest.fixture(scope="class", params=tiny_llamacpp.ARCHITECTURES)
    @classmethod
    def model(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LlamaCppModel:
        return tiny_llamacpp.load(request.param, tmp_path_factory.mktemp(request.param), exact=True)


class TestTinyRecurrent(ModelContract):
    """No part of its memory can be cut off: going back reads again. Drafts are chains."""

    tolerance = 2e-2
    supports_trees = False
    num_seeds = 2

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, tmp_path_factory: pytest.TempPathFactory) -> LlamaCppModel:
        return tiny_llamacpp.load_file(tiny_llamacpp.write_mamba(tmp_path_factory.mktemp("mamba")))

    test_the_last_token_is_never_reused = None  # only the whole of an earlier text can be gone on from
    test_a_stream_reuses_what_one_still_open_holds = None

    def reused(self, model: Model, tokens: list[int], at_least: int) -> Any:
        return super().reused(model, tokens, at_least=0)

    def test_the_whole_of_an_earlier_text_is_reused(self, model: LlamaCppModel, rng: np.random.Generator) -> None:
        first = self.tokens(model, rng, 30)
        self.filled(model, first).close()
        sequence = model.open([*first, 1, 2])
        assert sequence.length == 30
        self.assert_same(self.rows(model, sequence, [1, 2])[0], self.linear(model, [*first, 1, 2]))
        sequence.close()

    def test_a_tree_is_refused(self, model: LlamaCppModel) -> None:
        sequence = model.open()
        with pytest.raises(UnsupportedModelError, match="drafts chains"):
            model.score([ScoreRequest(sequence, [1], DraftTree((5, 6), (ROOT, ROOT)))])
        sequence.close()


@pytest.mark.real_model
class TestSmolLM2Shared(ModelContract):
    """Activations are rounded to 8 bits on the way: the last bit of a sum can move a logit this much.

    See docs/llamacpp.md for how far that goes. It would hide a small mistake; the tiny models and `exact` would not.
    """

    tolerance = 1.2
    num_seeds = 1

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> LlamaCppModel:
        return tiny_llamacpp.load_file("smollm2-135m")


@pytest.mark.slow
@pytest.mark.real_model
class TestSmolLM2Exact(ModelContract):
    """Three rows at a time. What is run of it otherwise is `test_the_heart_of_the_contract_bit_for_bit`."""

    num_seeds = 1

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> LlamaCppModel:
        return tiny_llamacpp.load_file("smollm2-135m", exact=True)


@pytest.mark.slow
class TestQwenShared(ModelContract):
    tolerance = 1.2
    num_seeds = 1

    @pytest.fixture(scope="class", params=["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
    @classmethod
    def model(cls, request: pytest.FixtureRequest) -> LlamaCppModel:
        path = QWEN / f"{request.param}.gguf"
        if not path.exists():
            pytest.skip(f"{path} is not here")
        return tiny_llamacpp.load_file(path)


@pytest.mark.real_model
def test_the_heart_of_the_contract_bit_for_bit() -> None:
    model, contract, rng = (
        tiny_llamacpp.load_file("smollm2-135m", exact=True),
        ModelContract(),
        np.random.default_rng(0),
    )
    assert model.info.batch_invariant
    contract.num_seeds, contract.prompt_length = 1, 12
    contract.test_scores_after_a_commit_equal_a_fresh_prefill(model, rng)
    contract.test_a_branch_that_is_not_the_first_can_be_committed(model, rng)
    contract.test_a_prompt_and_a_draft_share_a_forward(model, rng)


# -- what the llama.cpp backend promises beyond the contract ------------------------------------------------------


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LlamaCppModel:
    return tiny_llamacpp.load("llama", tmp_path_factory.mktemp("llama"), context_length=60)


def test_positions_beyond_the_context_are_refused(llama: LlamaCppModel) -> None:
    sequence = llama.open()
    llama.score([ScoreRequest(sequence, [1] * 58)])
    sequence.commit()
    wide = DraftTree((1, 2, 3, 4), (ROOT,) * 4)  # more nodes than places left, but only one deep
    assert len(llama.score([ScoreRequest(sequence, [1], wide)])) == 1
    with pytest.raises(ContextFullError):
        llama.score([ScoreRequest(sequence, [1], DraftTree.chain([2, 3]))])
    sequence.close()


def test_an_accepted_side_branch_is_read_again_in_the_order_of_the_text(llama: LlamaCppModel) -> None:
    """Its bits are those of plain decoding then, which cells out of order would not give."""
    tree = DraftTree((5, 6, 7, 8), (ROOT, ROOT, 1, 2))
    rows = []
    for drafts in (tree, DraftTree.chain([6, 7, 8])):
        sequence = llama.open(reserve=40)
        llama.score([ScoreRequest(sequence, list(range(1, 20)), drafts)])
        sequence.commit((1, 2, 3) if drafts is tree else (0, 1, 2))
        assert sequence.num_stored == (19 if drafts is tree else 22)
        (scores,) = llama.score([ScoreRequest(sequence, [9])])
        rows.append(scores.row(ROOT).copy())
        sequence.close()
        llama.forget_prompts()
    np.testing.assert_allclose(rows[0], rows[1], rtol=0, atol=1e-4)


def test_what_closed_streams_left_makes_way_for_the_next_and_comes_back(tmp_path: Path) -> None:
    model = tiny_llamacpp.load("llama", tmp_path, kv_tokens=500)  # and 256 cells for drafts under way
    old, other = [7] * 20 + [8] * 470, [7] * 20 + [9] * 470
    sequence = model.open(old)
    prefill(model, sequence, old)
    sequence.close()
    beside = model.open(other)  # takes the twenty that they share; the rest of `old` lies beside the cache
    assert beside.length == 20
    prefill(model, beside, other[20:])
    short = model.open([*old[:30], 5])  # no room for all of `old` beside it: read again
    assert short.length == 0
    short.close()
    beside.close()
    again = model.open([*old, 5])
    assert again.length == 490
    (scores,) = model.score([ScoreRequest(again, [5])])
    row = scores.row(ROOT).copy()
    again.close()
    model.forget_prompts()
    fresh = model.open([*old, 5])
    assert fresh.length == 0
    prefill(model, fresh, old)
    (scores,) = model.score([ScoreRequest(fresh, [5])])
    np.testing.assert_allclose(row, scores.row(ROOT), rtol=0, atol=2e-2)
    fresh.close()
