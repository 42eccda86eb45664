from __future__ import annotations

import pytest

from slipstream.backends.torch.load import load_model
from slipstream.loading import LoadedModel
from slipstream.measurement.workload import Prompt
from slipstream.models.shapes import RandomCheckpoint


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    """Random weights, real kernels: decodes in a millisecond."""
    checkpoint = RandomCheckpoint("tiny", seed=3)
    return LoadedModel(load_model(checkpoint), checkpoint.tokenizer)


@pytest.fixture
def prompts() -> list[Prompt]:
    texts = {"copy": "abcabcabcabcabc", "chat": "hello there", "code": "def f(x): return x"}
    return [Prompt(f"{kind}-{i}", kind, (f"{text}{i}",), raw=True) for kind, text in texts.items() for i in range(2)]
