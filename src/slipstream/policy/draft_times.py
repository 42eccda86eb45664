"""DraftTimes: the time of a drafter: per step (one depth of the draft, for all its streams), and for tokens it has to
read.
"""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.policy.constants import FIRST_ROUNDS
from slipstream.policy.round_times import RoundTimes


class DraftTimes:
    def __init__(self) -> None:
        self._steps = RoundTimes()  # by rows: one for each stream, more if there are tokens to read
        self._num_drafts = 0

    def expect(self, forwards_s: Mapping[int, float]) -> None:
        """Sets the times of the draft model's forward passes measured at load, by rows."""
        self._steps.expect(forwards_s)

    @property
    def is_known(self) -> bool:
        return self._steps.is_known

    def seconds(self, num_streams: int, num_steps: int, num_unread: int) -> float:
        """The time of a draft, including the tokens that the drafter has to read first."""
        step_s = self._steps.seconds(num_streams)
        reading_s = self._steps.seconds(num_streams + num_unread) - step_s if num_unread else 0.0
        return step_s * num_steps + reading_s

    def record(self, num_streams: int, num_steps: int, seconds: float, *, is_free: bool) -> None:
        """A model's first drafts are not counted, because they include compiling kernels and capturing graphs."""
        self._num_drafts += 1
        if is_free or self._num_drafts > FIRST_ROUNDS:
            self._steps.record(num_streams, seconds / max(num_steps, 1))
