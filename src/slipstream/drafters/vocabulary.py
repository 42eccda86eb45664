"""VocabularyMap: converts the target's tokens to the draft's, and the draft's back to the target's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from slipstream.core.sampling import Row


class VocabularyMap(Protocol):
    is_identity: bool  # the draft's ids are the target's

    def context(self, tokens: list[int]) -> list[int]:
        """The stream in the draft's ids."""
        ...

    def to_target_row(self, row: Row) -> Row:
        """[target vocab] the draft's logits by the target's ids; -inf if the draft has no such token."""
        ...

    def to_draft_token(self, token: int) -> int:
        """The draft's id of a target token that `to_target_row` gave a finite logit."""
        ...


class SameVocabulary:
    """One vocabulary; only padding rows may differ."""

    is_identity = True

    def __init__(self, target_size: int) -> None:
        self._target_size = target_size

    def context(self, tokens: list[int]) -> list[int]:
        return tokens

    def to_target_row(self, row: Row) -> Row:
        return row[: self._target_size]

    def to_draft_token(self, token: int) -> int:
        return token


class TokenTexts(Protocol):
    """The part of a tokenizer that gives the text of tokens."""

    @property
    def vocab_size(self) -> int: ...

    def token_bytes(self, token: int) -> bytes: ...

    def is_special(self, token: int) -> bool: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def encode(self, text: str, *, special: bool = False) -> list[int]: ...

    def prompt_ids(self, text: str) -> list[int]: ...


class SharedTokens:
    """Two vocabularies that overlap: the draft reads the stream's text, and drafts only tokens that both have."""

    is_identity = False

    def __init__(self, draft: TokenTexts, target: TokenTexts, target_size: int) -> None:
        self._draft, self._target = draft, target
        self._target_size = target_size
        self._to_draft = _shared_ids(draft, target)  # target id -> draft id
        self._target_ids: npt.NDArray[np.int64] = np.fromiter(self._to_draft.keys(), np.int64)
        self._draft_ids: npt.NDArray[np.int64] = np.fromiter(self._to_draft.values(), np.int64)

    @property
    def overlap(self) -> float:
        """Share of the target's tokens that the draft has too."""
        return len(self._to_draft) / max(self._target.vocab_size, 1)

    def context(self, tokens: list[int]) -> list[int]:
        return retokenised(tokens, self._target, self._draft)

    def to_target_row(self, row: Row) -> Row:
        mapped = np.full(self._target_size, -np.inf, np.float32)
        mapped[self._target_ids] = row[self._draft_ids]
        return mapped

    def to_draft_token(self, token: int) -> int:
        return self._to_draft[token]


def retokenised(tokens: list[int], source: TokenTexts, target: TokenTexts) -> list[int]:
    """The same text in another vocabulary. An incomplete character at the end is dropped."""
    text = source.decode(tokens).rstrip("\ufffd")
    return target.prompt_ids(text)


def _shared_ids(draft: TokenTexts, target: TokenTexts) -> dict[int, int]:
    """Ordinary tokens with the same bytes. Special tokens may differ in meaning even if their text is equal."""
    by_bytes = {draft.token_bytes(d): d for d in range(draft.vocab_size) if not draft.is_special(d)}
    shared = {}
    for token in range(target.vocab_size):
        if not target.is_special(token) and (d := by_bytes.get(target.token_bytes(token))) is not None:
            shared[token] = d
    return shared
