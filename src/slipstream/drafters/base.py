"""What drafters have in common: a guess, and the defaults of those that keep no state per stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.core.stream import Observation, Stream


@dataclass(frozen=True, slots=True)
class Guess:
    """A token in the target's ids, and the drafter's own estimate that the target will choose it."""

    token: int
    confidence: float
    proposal: npt.NDArray[np.float64] | None = None  # what it was drawn from, for the rejection verifier


class FreeDrafter:
    """A drafter whose proposals cost almost no time. Subclasses implement `propose`; the other methods have
    defaults.
    """

    is_free = True

    def begin(self, stream: Stream) -> None:
        pass

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def end(self, stream: Stream) -> None:
        pass
