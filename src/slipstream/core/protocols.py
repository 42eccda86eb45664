"""What the core needs from a backend: Model, KVSequence, Scores.

The engine and the backends do not know each other: they exchange token ids, trees and paths. Masks, slots, pages and
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
from slipstream.errors import ContextFullError

Logits = npt.NDArray[np.float32]
DEFAULT_PROMPT_ROWS = 256  # enough for a CPU: bounds memory, and what other streams wait


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The properties of a model."""

    name: str
    backend: str
    device: str
    dtype: str
    vocab_size: int  # columns of the logits, padding included
    context_length: int
    weight_bytes: int  # bytes read from memory in one forward pass
    batch_invariant: bool  # a row's logits have the same bits regardless of what else is scored with it
    max_rows: int  # the most rows of one forward pass
    extends: bool = False  # it can generate several tokens by itself: it is an ExtendingModel
    runs_ahead: bool = False  # after a request with a `next_draft`, the next forward pass starts before it is requested
    num_readable: int | None = None  # token ids it can read, if it can generate only some of them
    decoding_rows: int | None = None  # maximum rows of a decoding step; more use the slower path for prompts
    prompt_rows: int = DEFAULT_PROMPT_ROWS  # of one prompt in a forward pass: more don't make reading it faster

    def can_read(self, token: int) -> bool:
        return 0 <= token < (self.num_readable or self.vocab_size)


class Scores(Protocol):
    """The target's logits for one stream: a row for the last pending token (ROOT) and one for each node."""

    def row(self, node: int) -> npt.NDArray[np.float32]:
        """[vocab] logits after `node`, on the host. Valid until the model's next `score`."""
        ...

    def argmax(self, node: int) -> int:
        """The most likely token after `node`; ties go to the lower id."""
        ...

    def chosen(self, node: int) -> int | None:
        """The target's own token after `node`, by the request's sampling. None if the host has to choose, negative if
        the logits are not finite.
        """
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
        """Frees the place. Its tokens may be reused by a later `open`. Closing twice is harmless."""
        ...


@dataclass(slots=True)
class ScoreRequest:
    """Tokens to append (at least one) and the draft that follows the last of them.

    With `sampling`, a backend may choose the target's own tokens on its device; `position` is that of the first of them
    in the answer. `next_draft`: the next request will be the chosen token, unless the stream ends, and a draft of so
    many tokens by the same drafter (0: none). A backend may then start it early, and keeps no logits.
    """

    sequence: KVSequence
    pending: Sequence[int]
    tree: DraftTree = EMPTY_TREE
    sampling: Sampling | None = None
    position: int = 0
    next_draft: int | None = None

    @property
    def num_rows(self) -> int:
        return len(self.pending) + len(self.tree)


class Model(Protocol):
    """Weights on a backend."""

    @property
    def info(self) -> ModelInfo: ...

    def open(self, tokens: Sequence[int] = (), reserve: int = 0) -> KVSequence:
        """A place for a stream that begins with `tokens` and will have at most `reserve` tokens.

        Its `length` is the number of `tokens` already cached by earlier streams (always fewer than all). Raises
        CapacityError if there is no room now.
        """
        ...

    def can_open(self, reserve: int) -> bool:
        """Whether `open` has room for a stream of `reserve` tokens now. The engine queues the stream if not."""
        ...

    def forget_prompts(self) -> None:
        """Drops the cached tokens of closed streams."""
        ...

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """ONE forward pass for all requests, at most `info.max_rows` rows. Commits nothing."""
        ...

    def diagnose(self) -> str:
        """Why its logits may be NaN or infinite, for an error message: the tensor and file, or what to try."""
        ...


@dataclass(frozen=True, slots=True)
class ExtendRequest:
    """Tokens to append, and how many further tokens to generate, each chosen by `sampling`.

    With a `width` above 1, a tree of `steps` depths: the `width` likeliest nodes of each depth are continued, each with
    its `width` likeliest tokens. Only heads that extend grow trees.
    """

    sequence: KVSequence
    pending: Sequence[int]
    steps: int
    sampling: Sampling
    position: int  # of the first of them in the answer
    width: int = 1
    least_chance: float = 0.0  # a head that `ends_early` stops where its tokens together are less likely


@dataclass(frozen=True, slots=True)
class Extension:
    """`parents`: of each node of a tree, the node before it; None for a chain."""

    tokens: list[int]
    chances: list[float]  # the model's probability of each, given the tokens before it
    parents: list[int] | None = None


class ExtendingModel(Model, Protocol):
    def extend(self, requests: Sequence[ExtendRequest]) -> list[Extension]:
        """Generates tokens without the host. Keeps the pending tokens and all but the last of its own.

        Penalties and biases are ignored.
        """
        ...


@dataclass(frozen=True, slots=True)
class DraftNodes:
    """Nodes of a draft in progress, to be read by a head. Their parents were read before; `depth` is that of all of
    them. Node i of the draft may be read once.
    """

    sequence: KVSequence
    nodes: Sequence[int]
    tokens: Sequence[int]
    parents: Sequence[int]
    depth: int


class HeadModel(Protocol):
    """A draft head: it reads the hidden states that the target computes anyway, and has a cache beside the target's."""

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """[draft vocabulary] the target's id of each token that it can draft."""
        ...

    def follow(self, sequence: KVSequence) -> None:
        """Keeps the target's hidden states of this sequence from now on. Tokens that it holds already without
        them are dropped, to be read again.
        """
        ...

    def leave(self, sequence: KVSequence) -> None:
        """Nothing more will be drafted for it."""
        ...

    def extends(self, sampling: Sampling, width: int) -> bool:
        """Whether it can draft by itself with this sampling: a chain (`width` 1), or a tree of `width` nodes a step."""
        ...

    @property
    def ends_early(self) -> bool:
        """Whether its chains end where another token is not likely enough. Other heads take all requested steps."""
        ...

    def extend(self, requests: Sequence[ExtendRequest]) -> list[Extension]:
        """Drafts without the host, after the one pending token of each request. Nothing of it is kept."""
        ...

    def begin_draft(self, sequences: Sequence[KVSequence], tokens: Sequence[int]) -> list[Logits]:
        """Reads what the target has kept since the last draft, then one token of each sequence that the target has not
        read, in one forward pass. Returns the logits [draft vocabulary] of the token after it.
        """
        ...

    def read(self, drafts: Sequence[DraftNodes]) -> list[list[Logits]]:
        """Reads drafted nodes, of all sequences in one forward pass. Returns the logits after each of them."""
        ...


def prefill(model: Model, sequence: KVSequence, tokens: Sequence[int]) -> None:
    """Feeds `tokens` in chunks of the model's size, and keeps them."""
    step = model.info.max_rows
    for start in range(0, len(tokens), step):
        model.score([ScoreRequest(sequence, tokens[start : start + step])])
        sequence.commit()


def check_requests(info: ModelInfo, requests: Sequence[ScoreRequest]) -> None:
    """Raises ValueError or ContextFullError for requests that one forward pass can't take."""
    rows = sum(request.num_rows for request in requests)
    if rows > info.max_rows or any(not request.pending for request in requests):
        raise ValueError(
            f"a forward pass needs 1 to {info.max_rows} rows and a pending token for each request; got {rows} rows"
        )
    for request in requests:
        check_token_ids(info, request.pending)
        if request.tree:
            check_token_ids(info, request.tree.tokens)
        check_length(info, request.sequence, len(request.pending) + max(request.tree.depths(), default=0))


def check_token_ids(info: ModelInfo, tokens: Sequence[int]) -> None:
    """Raises ValueError. Kernels trust ids and positions: values out of range would read other memory."""
    if not (info.can_read(min(tokens)) and info.can_read(max(tokens))):
        most = (info.num_readable or info.vocab_size) - 1
        raise ValueError(f"got token ids from {min(tokens)} to {max(tokens)}; expected 0 to {most}")


def check_length(info: ModelInfo, sequence: KVSequence, count: int) -> None:
    """Raises ContextFullError if `count` more tokens do not fit."""
    length = sequence.length + count
    if length > info.context_length:
        raise ContextFullError(f"{length} tokens do not fit in a context of {info.context_length}")
