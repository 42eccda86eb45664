"""What a file states as its context is not allocated: tables and cache are as long as what is planned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from contract import tiny_models
from slipstream.backends.torch import load as torch_backend
from slipstream.backends.torch.decoder import Decoder
from slipstream.backends.torch.model import TorchModel
from slipstream.backends.torch.options import TorchOptions
from slipstream.core.protocols import ScoreRequest, prefill
from slipstream.errors import CapacityError, DamagedModelError
from slipstream.models import open_checkpoint
from slipstream.models.config import LONGEST_UNASKED_CONTEXT


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    return tiny_models.save_folder(tiny_models.make_model("llama2-mha"), folder)


def stating(folder: Path, context: int, target: Path) -> Path:
    """A copy of a model whose config states this context."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
    return target


def loaded(folder: Path, **options: int) -> tuple[TorchModel, Decoder]:
    model = torch_backend.load_model(open_checkpoint(folder), TorchOptions(device="cpu", **options))
    return model, model._runner._decoder


def logits(model: TorchModel) -> list[float]:
    place = model.open([], 40)
    prefill(model, place, list(range(1, 31)))
    (scores,) = model.score([ScoreRequest(place, [7])])
    return scores.row(-1).tolist()


def test_a_context_of_a_million_millions(sound: Path, tmp_path: Path) -> None:
    model, decoder = loaded(stating(sound, 10**12, tmp_path / "m"))
    assert model.info.context_length == LONGEST_UNASKED_CONTEXT
    assert decoder.rope.cosine.nbytes <= 4 * LONGEST_UNASKED_CONTEXT * decoder.config.head_dim // 2
    assert logits(model) == logits(loaded(sound)[0])


def test_the_table_is_no_longer_than_the_cache(sound: Path) -> None:
    model, decoder = loaded(sound, kv_tokens=100)
    assert len(decoder.rope.cosine) == 128 < tiny_models.CONTEXT
    assert logits(model) == logits(loaded(sound)[0])


def test_what_is_asked_for_is_planned(sound: Path, tmp_path: Path) -> None:
    folder = stating(sound, 10**12, tmp_path / "m")
    _, decoder = loaded(folder, context_length=3 << 20, kv_tokens=4096)
    assert len(decoder.rope.cosine) == 4096


@pytest.mark.parametrize("kv_tokens", [100, 2000])
def test_the_context_is_what_the_cache_can_hold_of_one_stream(sound: Path, tmp_path: Path, kv_tokens: int) -> None:
    """So that a longer request is refused at once, and does not wait until all others are done."""
    model, _ = loaded(stating(sound, 10**12, tmp_path / "m"), context_length=3 << 20, kv_tokens=kv_tokens)
    assert model.can_open(model.info.context_length)
    assert not model.can_open(model.info.context_length + 1)


def test_a_cache_that_no_memory_can_hold_is_refused(sound: Path) -> None:
    with pytest.raises(CapacityError, match="too little memory"):
        loaded(sound, kv_tokens=10**14)


@pytest.mark.parametrize("context", [0, -1, 1 << 50])
def test_a_context_that_no_model_has(sound: Path, tmp_path: Path, context: int) -> None:
    with pytest.raises(DamagedModelError, match="context length"):
        open_checkpoint(stating(sound, context, tmp_path / "m"))
