"""A model in which one token id is poison: its embedding is NaN. Streams with that token must fail alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contract import cuda_models, tiny_models
from slipstream.backends.torch.model import TorchModel
from slipstream.core.engine import Engine
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.drafters.model import DraftModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.errors import NonFiniteLogitsError
from slipstream.models import open_checkpoint
from slipstream.policy import FixedPolicy

POISON = 7
LIMITS = Limits(max_tokens=20, ignore_eos=True)
SAMPLINGS = (Sampling(logit_bias={POISON: -1e4}), Sampling(), Sampling(temperature=0.7, seed=3))


def save(folder: Path, family: str = "llama2-mha") -> Path:
    model = tiny_models.make_model(family, **cuda_models.SIZES)
    with torch.no_grad():
        model.model.embed_tokens.weight[POISON] = torch.nan
    return tiny_models.save_folder(model, folder)


def assert_poison_stays_in_its_streams(model: TorchModel, folder: Path) -> None:
    """Text before, beside and after poisoned streams is the same; their error names the weight."""
    tokenizer = open_checkpoint(folder).tokenizer
    prompts = [[i + 8, i + 9, i + 10] for i in range(3)]
    clean = [_answers(model, tokenizer, p, s) for p in prompts for s in SAMPLINGS]
    for drafter in (None, SuffixDrafter(), DraftModelDrafter(model)):
        engine = Engine(model, tokenizer, drafter, FixedPolicy(3))
        good = [engine.generate(p, s, LIMITS) for p in prompts for s in SAMPLINGS]
        for round_with_poison in range(3):
            for prompt in ([POISON], [*range(8, 80), POISON]):
                bad = engine.generate(prompt, SAMPLINGS[round_with_poison], LIMITS)
                with pytest.raises(NonFiniteLogitsError, match=r"model\.embed_tokens has NaN"):
                    bad.result()
        model.forget_prompts()  # their pages go to others
        good += [engine.generate(p, s, LIMITS) for p in prompts for s in SAMPLINGS]
        assert [_result(g) for g in good] == clean * 2
        assert model.num_open == 0


def _answers(model: TorchModel, tokenizer: object, prompt: list[int], sampling: Sampling) -> list[int]:
    return _result(Engine(model, tokenizer).generate(prompt, sampling, LIMITS))  # type: ignore[arg-type]


def _result(generation) -> list[int]:  # type: ignore[no-untyped-def]
    """The tokens until the model says the poisoned one itself, which is its own fault."""
    try:
        tokens: list[int] = generation.result().tokens
    except NonFiniteLogitsError:
        tokens = generation.tokens
        assert tokens[-1] == POISON
    return tokens
