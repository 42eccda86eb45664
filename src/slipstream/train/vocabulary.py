"""DraftVocabulary: the ids that a head can draft, by how often the text has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.train.shards import Role, Text


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    ids: npt.NDArray[np.int64]  # [draft vocabulary], rising: the target's id of each
    target_size: int
    coverage: float  # share of the answer tokens of the text that it has

    @property
    def is_full(self) -> bool:
        return len(self.ids) == self.target_size


def choose_vocabulary(
    texts: Iterable[Text], size: int, target_size: int, always: Iterable[int] = ()
) -> DraftVocabulary:
    """The most frequent ids of answers, `always` among them; those of questions next, then the lowest ids. 0: all."""
    answers, others = np.zeros(target_size, np.int64), np.zeros(target_size, np.int64)
    for text in texts:
        is_answer = text.roles == Role.ANSWER
        answers += np.bincount(text.tokens[is_answer], minlength=target_size)
        others += np.bincount(text.tokens[~is_answer], minlength=target_size)
    if not 0 < size < target_size:
        return DraftVocabulary(np.arange(target_size, dtype=np.int64), target_size, 1.0)
    forced = np.zeros(target_size, np.bool_)
    forced[[token for token in always if token < target_size]] = True
    order = np.lexsort((np.arange(target_size), -others, -answers, ~forced))  # the last key decides first
    ids = np.sort(order[:size]).astype(np.int64)
    return DraftVocabulary(ids, target_size, float(answers[ids].sum() / max(answers.sum(), 1)))
