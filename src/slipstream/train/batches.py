"""Batches: which texts each step reads. A function of the seed and the step alone, so that a run can go on anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from slipstream.train.shards import Text

PADDED_TO = 32  # tokens: few different shapes, which kernels and allocators like
_SORTED_TOGETHER = 64  # batches whose texts are sorted by length: little padding, and still a mixture


@dataclass(frozen=True, slots=True)
class TextBatch:
    tokens: torch.Tensor  # [texts, length] int64, padded at the ends
    places: torch.Tensor  # [texts, length] int64: where each token stands in the corpus, text after text
    rows: torch.Tensor  # [rows] int64: flat positions whose prediction counts
    weights: torch.Tensor  # [rows] float32
    kinds: torch.Tensor  # [rows] int64: kind of each row's text

    def to(self, device: torch.device) -> TextBatch:
        """Without waiting for the copy."""
        if device.type == "cpu":
            return self

        def moved(part: torch.Tensor) -> torch.Tensor:
            return part.pin_memory().to(device, non_blocking=True)

        return TextBatch(*(moved(getattr(self, field.name)) for field in fields(self)))


@dataclass(frozen=True)
class Corpus:
    """Texts to learn from, or to judge by."""

    texts: Sequence[Text]
    kinds: tuple[str, ...]  # of all texts, those held back included
    user_weight: float

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """[texts + 1] the place of each text's first token; the last entry is the number of tokens."""
        return np.cumsum([0, *(len(text.tokens) for text in self.texts)], dtype=np.int64)

    def batch(self, chosen: Sequence[int]) -> TextBatch:
        """A position s predicts the token at s + 2: features of s, token of s + 1. Its weight is by who wrote s + 2."""
        texts = [self.texts[i] for i in chosen]
        length = _padded(max(len(text.tokens) for text in texts))
        tokens, weights = np.zeros((len(texts), length), np.int64), np.zeros((len(texts), length), np.float32)
        by_role = np.array([0.0, self.user_weight, 1.0], np.float32)
        for i, text in enumerate(texts):
            tokens[i, : len(text.tokens)] = text.tokens
            weights[i, : max(0, len(text.tokens) - 2)] = by_role[text.roles[2:]]
        rows = np.flatnonzero(weights)
        kinds = np.array([self.kinds.index(text.kind) for text in texts], np.int64)
        kept = weights.reshape(-1)[rows]
        ends = np.array([len(text.tokens) - 1 for text in texts])
        within = np.minimum(np.arange(length)[None, :], ends[:, None])  # padding repeats the last token's place
        places = self.starts[list(chosen)][:, None] + within
        return TextBatch(*map(torch.from_numpy, (tokens, places, rows, kept, kinds[rows // length])))

    def in_order(self, batch_tokens: int) -> list[list[int]]:
        """All texts, the shortest first."""
        return list(_filled(np.argsort([len(t.tokens) for t in self.texts], kind="stable"), self.texts, batch_tokens))


class Schedule:
    """The texts of each step, epoch after epoch, each in an order of its own."""

    def __init__(self, corpus: Corpus, batch_tokens: int, seed: int) -> None:
        self._corpus = corpus
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._epoch, self._first, self._batches = 0, 0, self._of_epoch(0)  # the first step of the epoch

    def at(self, step: int) -> list[int]:
        if step < self._first:
            self._epoch, self._first, self._batches = 0, 0, self._of_epoch(0)
        while step >= self._first + len(self._batches):
            self._first += len(self._batches)
            self._epoch += 1
            self._batches = self._of_epoch(self._epoch)
        return self._batches[step - self._first]

    def _of_epoch(self, epoch: int) -> list[list[int]]:
        chance, texts = np.random.default_rng([self._seed, epoch]), self._corpus.texts
        order = chance.permutation(len(texts))
        lengths = np.array([len(text.tokens) for text in texts])
        together = max(1, int(_SORTED_TOGETHER * self._batch_tokens / max(lengths.mean(), 1)))
        batches: list[list[int]] = []
        for start in range(0, len(order), together):
            part = order[start : start + together]
            batches += _filled(part[np.argsort(lengths[part], kind="stable")], texts, self._batch_tokens)
        return [batches[i] for i in chance.permutation(len(batches))]


def _filled(order: npt.NDArray[np.int64], texts: Sequence[Text], batch_tokens: int) -> Iterator[list[int]]:
    """Texts in this order, as many at a time as fit with their padding."""
    batch: list[int] = []
    longest = 0
    for i in order.tolist():
        longest = max(longest, _padded(len(texts[i].tokens)))
        if batch and (len(batch) + 1) * longest > batch_tokens:
            yield batch
            batch, longest = [], _padded(len(texts[i].tokens))
        batch.append(i)
    if batch:
        yield batch


def _padded(length: int) -> int:
    return -(-length // PADDED_TO) * PADDED_TO


def split(texts: Sequence[Text], held_back: float, user_weight: float) -> tuple[Corpus, Corpus]:
    """Texts to learn from and texts held back, by a hash of their questions: all answers to one are together."""
    kinds = tuple(sorted({text.kind for text in texts}))
    judged = [text.is_held_back(held_back) for text in texts]
    learned = [text for text, is_judged in zip(texts, judged, strict=True) if not is_judged]
    others = [text for text, is_judged in zip(texts, judged, strict=True) if is_judged]
    return Corpus(learned, kinds, user_weight), Corpus(others, kinds, 0.0)
