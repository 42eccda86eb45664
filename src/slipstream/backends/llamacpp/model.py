"""LlamaCppModel: a model in llama.cpp, as the core's Model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.backends.llamacpp.context import Context, Logits
from slipstream.backends.llamacpp.forward import Forward, StreamRows
from slipstream.backends.llamacpp.sequences import LlamaSequence, Sequences
from slipstream.core.protocols import KVSequence, ModelInfo, ScoreRequest, Scores, check_requests
from slipstream.core.sampling import likeliest


@dataclass(slots=True)
class LlamaScores:
    """Logits of one request, in the library's own memory."""

    logits: Logits  # [nodes + 1, vocab]

    def row(self, node: int) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self.logits[1 + node]
        return row

    def argmax(self, node: int) -> int:
        return likeliest(self.logits[1 + node])

    def chosen(self, node: int) -> None:
        return None


class LlamaCppModel:
    def __init__(self, info: ModelInfo, context: Context, sequences: Sequences, forward: Forward) -> None:
        self._info = info
        self._context = context
        self._sequences = sequences
        self._forward = forward

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def num_open(self) -> int:
        """Streams that have a place in the cache now."""
        return self._sequences.num_open

    def open(self, tokens: Sequence[int] = (), reserve: int = 0) -> LlamaSequence:
        return self._sequences.open(list(tokens), reserve)

    def can_open(self, reserve: int) -> bool:
        return self._sequences.can_open(reserve)

    def forget_prompts(self) -> None:
        self._sequences.forget_closed()

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        check_requests(self._info, requests)
        parts = []
        for request in requests:
            sequence = _own(request.sequence)
            sequence.begin_score()
            parts.append(StreamRows(sequence, tuple(request.pending), request.tree))
        return [LlamaScores(block) for block in self._forward.run(parts)]

    def diagnose(self) -> str:
        return (
            "the file is damaged, or a value overflowed: check the file with `slipstream doctor --target`, and try "
            "--kv-type f32"
        )

    def close(self) -> None:
        """Frees the weights and the cache. Nothing may be scored afterwards."""
        self._context.close()


def _own(sequence: KVSequence) -> LlamaSequence:
    assert isinstance(sequence, LlamaSequence)
    return sequence
