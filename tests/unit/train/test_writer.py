"""Both writers give the text that the engine gives for each prompt alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contract import cuda_models, tiny_models
from slipstream.backends.torch.model import TorchModel
from slipstream.core.engine import Engine
from slipstream.core.protocols import ExtendRequest, Extension, ScoreRequest
from slipstream.core.sampling import sample
from slipstream.loading import load
from slipstream.models import open_checkpoint
from slipstream.train.scripts import Script, Wanted
from slipstream.train.shards import Text
from slipstream.train.writer import BulkWriter, EngineWriter, Writer, run_scripts, writer_for

WANTED = [
    Wanted([1, 2, 3, 4, 5, 6, 7], 9, 0.0, 1),
    Wanted([1, 2, 3, 9], 5, 1.0, 2),
    Wanted([8], 7, 1.0, 3),
    Wanted([1, 2, 3, 9, 10], 4, 0.8, 4),
]


def echo(wanted: Wanted) -> Script:
    written = yield wanted
    return [Text(np.array(written, np.int32), np.zeros(len(written), np.uint8), "echo")]


def scripts() -> Iterator[Script]:
    return (echo(wanted) for wanted in WANTED)


def written(writer: Writer) -> list[list[int]]:
    counts: list[int] = []
    made = run_scripts(writer, scripts(), 2, counts.append)
    texts = [texts[0].tokens.tolist() for texts in made]
    assert counts[-1] == sum(map(len, texts))
    return texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cuda_models.save("llama2-mha", tmp_path_factory.mktemp("wide"))


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[list[int]]:
    engine = load(folder, drafter="none")
    return [
        engine.generate(list(w.prompt), max_tokens=w.max_tokens, temperature=w.temperature, seed=w.seed).result().tokens
        for w in WANTED
    ]


def test_the_engine_writes(folder: Path, alone: list[list[int]]) -> None:
    writer = writer_for(load(folder, drafter="none"))
    assert isinstance(writer, EngineWriter)
    assert written(writer) == alone


class SelfExtending:
    """A model of the CPU that generates by itself as those on a GPU do: all but the last token are kept."""

    def __init__(self, model: TorchModel, max_rows: int) -> None:
        self.info = replace(model.info, max_rows=max_rows, extends=True)
        self.open, self.score, self._model = model.open, model.score, model

    def extend(self, requests: Sequence[ExtendRequest]) -> list[Extension]:
        return [self._extended(request) for request in requests]

    def _extended(self, request: ExtendRequest) -> Extension:
        tokens, pending = [], list(request.pending)
        for step in range(request.steps):
            row = self._model.score([ScoreRequest(request.sequence, pending)])[0].row(-1)
            request.sequence.commit()
            pending = [sample(row, request.sampling, request.position + step)]
            tokens += pending
        return Extension(tokens, [1.0] * len(tokens))


def test_a_model_that_goes_on_by_itself_writes_the_same(folder: Path, alone: list[list[int]]) -> None:
    model = tiny_models.load_native(folder)
    tokenizer = open_checkpoint(folder).tokenizer
    assert written(BulkWriter(SelfExtending(model, max_rows=4), tokenizer.eos_ids, steps=3)) == alone
    assert model.num_open == 0


def test_the_kernels_of_a_gpu_write_the_same_and_end_with_the_end_token(folder: Path, alone: list[list[int]]) -> None:
    model = cuda_models.load_interpreted(folder)
    assert isinstance(writer_for(Engine(model, open_checkpoint(folder).tokenizer)), BulkWriter)
    end = alone[1][1]
    writer = BulkWriter(model, frozenset({end}), steps=2)
    writer.start(0, WANTED[1])
    assert writer.step() == {0: alone[1][: alone[1].index(end) + 1]}
