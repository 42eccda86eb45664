"""TorchModel: a decoder with its KV pool, as the core's Model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.kv_pool import KVPool, PooledSequence, own_sequence
from slipstream.core.protocols import (
    ExtendRequest,
    Extension,
    HeadModel,
    ModelInfo,
    ScoreRequest,
    Scores,
    check_length,
    check_requests,
    check_token_ids,
)
from slipstream.core.tree import EMPTY_TREE
from slipstream.errors import UsageError
from slipstream.models.draft_heads.files import HeadCheckpoint


class Runner(Protocol):
    """Runs forwards on a device."""

    extends: bool
    runs_ahead: bool
    decoding_rows: int | None
    max_rows: int | None  # of a forward; None: as many as there is memory for

    def score(self, requests: Sequence[ScoreRequest], parts: Sequence[SequenceRows]) -> list[Scores]:
        """One forward pass. The parts are those of the requests, with room in the cache."""
        ...

    def extend(self, requests: Sequence[ExtendRequest], parts: Sequence[SequenceRows]) -> list[Extension]: ...

    def attach_head(self, checkpoint: HeadCheckpoint) -> HeadModel:
        """Raises UnsupportedModelError, where heads can't run."""
        ...


@dataclass(frozen=True, slots=True)
class Cuts:
    """Creates models from a part of this one's weights."""

    first_layers: Callable[[int], TorchModel]
    first_tokens: Callable[[int], TorchModel]


class TorchModel:
    def __init__(
        self,
        info: ModelInfo,
        pool: KVPool,
        runner: Runner,
        num_layers: int,
        cuts: Cuts,
        nonfinite_weight: Callable[[], str | None],
    ) -> None:
        self._info = info
        self._pool = pool
        self._runner = runner
        self._cuts = cuts
        self._nonfinite_weight = nonfinite_weight
        self.num_layers = num_layers

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def num_open(self) -> int:
        """Streams that have a place in the cache now."""
        return self._pool.num_open

    def open(self, tokens: Sequence[int] = (), reserve: int = 0) -> PooledSequence:
        return self._pool.open(list(tokens), reserve)

    def can_open(self, reserve: int) -> bool:
        return self._pool.can_open(reserve)

    def forget_prompts(self) -> None:
        self._pool.forget_closed()

    @torch.inference_mode()
    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        check_requests(self._info, requests)
        parts = []
        for request in requests:
            sequence = own_sequence(request.sequence)
            sequence.prepare(request.pending, request.tree.tokens)
            parts.append(SequenceRows(sequence, sequence.length, request.pending, request.tree))
        return self._runner.score(requests, parts)

    @torch.inference_mode()
    def extend(self, requests: Sequence[ExtendRequest]) -> list[Extension]:
        """As ExtendingModel says, where `info.extends`."""
        steps = max(request.steps for request in requests)
        for request in requests:
            check_token_ids(self._info, request.pending)
            check_length(self._info, request.sequence, len(request.pending) + steps - 1)
        parts = []
        for request in requests:
            sequence = own_sequence(request.sequence)
            sequence.make_room(len(request.pending) + steps)
            parts.append(SequenceRows(sequence, sequence.length, request.pending, EMPTY_TREE))
        extensions = self._runner.extend(requests, parts)
        for request, extension in zip(requests, extensions, strict=True):
            own_sequence(request.sequence).keep([*request.pending, *extension.tokens[:-1]])
        return extensions

    @torch.inference_mode()
    def diagnose(self) -> str:
        weight = self._nonfinite_weight()
        if weight is not None:
            return f"its weight {weight} has NaN or infinity, so the file is damaged: download or convert it again"
        if self._info.dtype in ("fp32", "int8", "fp8"):
            return (
                f"all its weights are finite, but a value overflowed in {self._info.dtype}: a weight is far too large, "
                "so the file is damaged; check it with `slipstream doctor --target`, and download it again"
            )
        wider = "bf16 or fp32" if self._info.dtype == "fp16" else "fp32"
        return f"all its weights are finite, so a value overflowed in {self._info.dtype}: load it with dtype {wider}"

    def attach_head(self, checkpoint: HeadCheckpoint) -> HeadModel:
        """The head, ready to draft for this model's streams. Raises UsageError where the model has another one."""
        return self._runner.attach_head(checkpoint)

    def first_layers(self, count: int) -> TorchModel:
        """A model with the first `count` layers of the same weights, with its own cache."""
        if not 1 <= count < self.num_layers:
            raise UsageError(
                f"early exit after {count} layers; {self._info.name} has {self.num_layers} layers, expected fewer"
            )
        return self._cuts.first_layers(count)

    def first_tokens(self, count: int) -> TorchModel:
        """The same model with a smaller output head: it can generate only the first `count` ids of the vocabulary.

        It replaces this model: they share the cache.
        """
        if not 16 <= count < self._info.vocab_size or count % 16:
            raise UsageError(
                f"head of {count} tokens; {self._info.name} has {self._info.vocab_size} tokens, expected fewer, and a "
                "multiple of 16"
            )
        return self._cuts.first_tokens(count)
