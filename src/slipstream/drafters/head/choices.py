"""A head's candidate tokens: its likeliest ones, with the noise that the target will use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.core.noise import Domain, coupled_contenders
from slipstream.core.protocols import Logits
from slipstream.core.sampling import History, Sampling, candidates, distribution, draw, processed
from slipstream.drafters.base import Guess

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HeadChoices:
    """`token_ids`: the target's id of each of the head's tokens."""

    token_ids: Ids
    vocab_size: int  # of the target

    def likeliest(self, row: Logits, sampling: Sampling, position: int, count: int) -> list[Guess]:
        """The best `count` tokens, best first. Where the target samples, by logits plus its noise."""
        ids, values = self._contenders(row, sampling, position)
        best = _largest(values, min(count, len(values)))
        weights = np.exp(values - values[best[0]])
        chances = weights[best] / weights.sum()
        return [Guess(int(ids[i]), float(p)) for i, p in zip(best, chances, strict=True)]

    def _contenders(
        self, row: Logits, sampling: Sampling, position: int
    ) -> tuple[Ids, npt.NDArray[np.float32] | npt.NDArray[np.float64]]:
        if sampling.is_greedy:
            return self.token_ids, row
        left = candidates(row, sampling)
        return coupled_contenders(left.z, self.token_ids[left.tokens], sampling.seed, position)

    def drawn(self, row: Logits, sampling: Sampling, position: int) -> list[Guess]:
        """One sample that is independent of the target's."""
        q = np.zeros(self.vocab_size, np.float64)
        own = distribution(row, sampling)
        q[self.token_ids] = own
        return [Guess(draw(q, sampling.seed, position, Domain.DRAFT), float(own.max()), q)]

    def processed(self, row: Logits, sampling: Sampling, history: History, path: list[int]) -> Logits:
        """After penalties and biases, which are by the target's ids."""
        if not sampling.changes_logits:
            return row
        full = np.full(self.vocab_size, -np.inf, np.float32)
        full[self.token_ids] = row
        changed: Logits = processed(full, sampling, history, path)[self.token_ids]
        return changed


def _largest(values: npt.NDArray[np.float32] | npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Places of the largest, in order."""
    if count == 1:
        return np.array([values.argmax()])
    best = np.argpartition(values, -count)[-count:] if count < len(values) else np.arange(count)
    return best[np.argsort(-values[best], kind="stable")]
