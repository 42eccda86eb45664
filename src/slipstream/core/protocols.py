"""What the core asks of a backend: Model, KVSequence, Scores.

The engine knows no backend and a backend no engine: they speak token ids, trees and paths. Masks, slots, pages and
positions stay inside a backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from slipstream.core.sampling import Sampling
from slipstream.core.tree import EMPTY_TREE, DraftTree


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model says of itself."""

    name: str
    backend: str
    device: str
    dtype: str
    vocab_size: int  # columns of the logits, padding included
    context_length: int
    weight_bytes: int  # read from memory in one forward
    batch_invariant: bool  # a row's logits never depend, bit for bit, on what else is scored with it
    max_rows: int  # the most rows one forward takes
    extends: bool = False  # goes on by itself for several tokens: it is an ExtendingModel
    runs_ahead: bool = False  # a request that `continues` is started on before it is made
    num_readable: int | None = None  # token ids it can read, where it can say only some of them
    decoding_rows: int | None = None  # rows of a decoding step at most: more take the slower path of prompts

    def can_read(self, token: int) -> bool:
        return 0 <= token < (self.num_readable or self.vocab_size)


class Scores(Protocol):
    """The target's logits for one stream: a row for the last pending token (ROOT) and one for each node."""

    def row(self, node: int) -> npt.NDArray[np.float32]:
        """[vocab] logits after `node`, on the host. Valid until the model's next `score`."""
        ...

    def argmax(self, node: int) -> int:
        """The likeliest token after `node`; ties go to the lower id."""
        ...

    def chosen(self, node: int) -> int | None:
        """The target's own token after `node`, by the request's sampling. None where the host has to choose, negative
        where the logits are not finite."""
        ...


class KVSequence(Protocol):
    """One stream's place in a model's KV cache."""

    @property
    def length(self) -> int:
        """Tokens kept. After `open` with a known beginning this is already more than 0."""
        ...

    def commit(self, path: Sequence[int] = ()) -> None:
        """Keeps the pending tokens and the nodes of `path` of the last score; forgets the rest of the draft."""
        ...

    def rewind(self, length: int) -> None:
        """Forgets everything after the first `length` tokens."""
        ...

    def fork(self) -> KVSequence:
        """A second sequence with the same kept tokens, sharing their memory. Raises CapacityError when full."""
        ...

    def close(self) -> None:
        """Gives the place back. What it held may serve a later `open`. Closing twice is harmless."""
        ...


@dataclass(slots=True)
class ScoreRequest:
    """Tokens to append (at least one) and the draft that follows the last of them.

    With `sampling`, a backend may choose the target's own tokens where the logits are; `position` is that of the
    first of them in the answer. `continues` says that the next request will be the chosen token alone, unless the
    stream ends: a backend may start on it before it is asked, and then keeps no logits.
    """

    sequence: KVSequence
    pending: Sequence[int]
    tree: DraftTree = EMPTY_TREE
    sampling: Sampling | None = None
    position: int = 0
    continues: bool = False

    @property
    def num_rows(self) -> int:
        return len(self.pending) + len(self.tree)


class Model(Protocol):
    """Weights on a backend."""

    @property
    def info(self) -> ModelInfo: ...

    def open(self, tokens: Sequence[int] = (), reserve: int = 0) -> KVSequence:
        """A place for a stream that begins with `tokens` and will hold `reserve` tokens at most.

        Its `length` says how many of `tokens` are there already from earlier streams (always fewer than all).
        Raises CapacityError when there is no room now.
        """
        ...

    def can_open(self, reserve: int) -> bool:
        """Whether `open` has room for a stream of `reserve` tokens now. The engine queues the stream if not."""
        ...

    def forget_prompts(self) -> None:
        """Drops what closed streams left for reuse."""
        ...

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """ONE forward for all requests, at most `info.max_rows` rows. Commits nothing."""
        ...

    def diagnose(self) -> str:
        """Why its logits may be NaN or infinite, for an error message: which tensor of which file, or what to try."""
        ...


@dataclass(frozen=True, slots=True)
class ExtendRequest:
    """Tokens to append, and how many tokens to go on for, each chosen by `sampling`."""

    sequence: KVSequence
    pending: Sequence[int]
    steps: int
    sampling: Sampling
    position: int  # of the first of them in the answer


@dataclass(frozen=True, slots=True)
class Extension:
    tokens: list[int]
    chances: list[float]  # the model's probability of each


class ExtendingModel(Model, Protocol):
    def extend(self, requests: Sequence[ExtendRequest]) -> list[Extension]:
        """Goes on by itself, the host left out. Keeps what was pending and all but the last of its own tokens.

        Penalties and biases are not looked at.
        """
        ...


def prefill(model: Model, sequence: KVSequence, tokens: Sequence[int]) -> None:
    """Feeds `tokens` in pieces the model takes, and keeps them."""
    step = model.info.max_rows
    for start in range(0, len(tokens), step):
        model.score([ScoreRequest(sequence, tokens[start : start + step])])
        sequence.commit()
