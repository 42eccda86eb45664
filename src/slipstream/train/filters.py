"""Which texts are worth training on: neither loops, nor next to nothing, nor the same again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from slipstream.train.shards import Role, Text

LEAST_ANSWER_TOKENS = 8
_NGRAM = 6  # tokens; shorter ones repeat in good text too: lists, code, names
_MAX_REPEATED = 0.35  # share of n-grams that occurred before in the text; an answer that copies its prompt has less
_FINGERPRINT_TOKENS = 48


def repeated_share(tokens: npt.NDArray[np.int32]) -> float:
    """The share of n-grams that are not the first of their kind; 0 for a text that has none."""
    if len(tokens) <= _NGRAM:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(tokens, _NGRAM)
    return 1.0 - len(np.unique(windows, axis=0)) / len(windows)


def is_worth_keeping(text: Text) -> bool:
    answers = text.tokens[text.roles == Role.ANSWER]
    return len(answers) >= LEAST_ANSWER_TOKENS and repeated_share(answers) <= _MAX_REPEATED


class Seen:
    """Drops texts whose question, or beginning where there is none, was there before. With `keeps_answers` a question
    may come again, if its answer is another one."""

    def __init__(self, texts: Iterable[Text] = (), keeps_answers: bool = False) -> None:
        self._keeps_answers = keeps_answers
        self._seen = {self._fingerprint(text) for text in texts}

    def is_new(self, text: Text) -> bool:
        """True once for each; the text counts as seen from then on."""
        mark = self._fingerprint(text)
        if mark in self._seen:
            return False
        self._seen.add(mark)
        return True

    def _fingerprint(self, text: Text) -> bytes:
        asked = text.tokens[text.roles == Role.USER]
        begun = asked if len(asked) else text.tokens[text.roles == Role.ANSWER][:_FINGERPRINT_TOKENS]
        return hashlib.blake2b((text.tokens if self._keeps_answers else begun).tobytes(), digest_size=12).digest()
