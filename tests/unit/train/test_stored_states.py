"""Stored states are what the target gives for the batch; what does not fit beside the training is not stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from slipstream.models import open_checkpoint
from slipstream.train.batches import Corpus
from slipstream.train.forward import load_target
from slipstream.train.memory import TrainingPlan
from slipstream.train.shards import Role, Text
from slipstream.train.stored_states import stored_states

CPU = torch.device("cpu")


def test_a_batch_gets_the_states_that_the_target_would_give(tiny_folders: dict[str, Path]) -> None:
    target = load_target(open_checkpoint(str(tiny_folders["llama2-mha"])), (1, 3), CPU, torch.float32, 64)
    random = np.random.default_rng(0)
    texts = [
        Text(random.integers(3, 90, length).astype(np.int32), np.full(length, Role.ANSWER, np.uint8), "chat")
        for length in (9, 40, 17, 33)
    ]
    corpus = Corpus(texts, ("chat",), 0.1)
    stored = stored_states(target, corpus, 80, CPU, 1 << 30)
    assert stored is not None
    batch = corpus.batch([2, 0, 3])
    found, expected = stored(batch), target(batch.tokens)
    for i, length in enumerate((17, 9, 33)):
        torch.testing.assert_close(found.features[i, :length], expected.features[i, :length])
        torch.testing.assert_close(found.hidden[i, :length], expected.hidden[i, :length])
    assert stored_states(target, corpus, 80, CPU, 1000) is None


def test_the_memory_that_training_takes_is_left_free() -> None:
    plan = TrainingPlan(target=10, writing=20, trained=30, activations=40, fixed=5, free=200, smaller="")
    assert [plan.stored(free) for free in (1000, 100, 60)] == [600, 30, -10]
