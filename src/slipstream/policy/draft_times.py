"""DraftTimes: the time of a drafter: per draft, per step (one depth of it, for all its streams), and for tokens it has
to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.policy.constants import FIRST_ROUNDS, MAX_DRAFT
from slipstream.policy.round_times import RoundTimes


class DraftTimes:
    def __init__(self) -> None:
        self._steps = RoundTimes()  # by rows: one for each stream, more if there are tokens to read
        self._call_s = 0.0  # of a draft, besides its steps
        self._num_drafts = 0
        self._is_rehearsed = False  # what a draft takes was measured at load

    def expect(self, forwards_s: Mapping[int, float]) -> None:
        """Sets the times of the draft model's forward passes measured at load, by rows."""
        self._steps.expect(forwards_s)

    def rehearse(self, drafts: Sequence[tuple[int, float]]) -> None:
        """Learns from steps and seconds of drafts for one stream, made before the first answer: those with few and
        those with many steps show what a draft takes besides its steps. The lowest time of each counts, as for forward
        passes: a time inflated by other programs would stay if no draft then pays.
        """
        by_steps = {n: min(s for steps, s in drafts if steps == n) for n in sorted({steps for steps, _ in drafts})}
        fewest, most = min(by_steps), max(by_steps)
        if fewest < most:
            step_s = max(0.0, by_steps[most] - by_steps[fewest]) / (most - fewest)
            self._call_s = max(0.0, by_steps[fewest] - fewest * step_s)
            self._steps.expect({1: step_s})
            self._num_drafts += len(drafts)
            self._is_rehearsed = True
            return
        for steps, seconds in drafts:
            self.record(1, steps, seconds, is_free=False)

    @property
    def is_known(self) -> bool:
        return self._steps.is_known

    def step(self, num_streams: int) -> float:
        """The time of one step more."""
        return self._steps.seconds(num_streams)

    def seconds(self, num_streams: int, num_steps: int, num_unread: int) -> float:
        """The time of a draft, including the tokens that the drafter has to read first."""
        step_s = self.step(num_streams)
        reading_s = self._steps.seconds(num_streams + num_unread) - step_s if num_unread else 0.0
        return self._call_s + step_s * num_steps + reading_s

    def record(self, num_streams: int, num_steps: int, seconds: float, num_unread: int = 0, *, is_free: bool) -> None:
        """A model's first drafts are not counted, because they include compiling kernels and capturing graphs. After a
        rehearsal, neither are those that had much to read first, such as a prompt: one of them would make every step
        look as slow. `num_unread`: the most of any stream.

        A draft takes longer than what it takes besides its steps. If this one did not, the machine was busy when that
        was measured: all times are then reduced by the same factor."""
        self._num_drafts += 1
        if num_steps and seconds < self._call_s:
            share = seconds / self.seconds(num_streams, num_steps, 0)
            self._call_s *= share
            self._steps.rescale(share)
        reads_much = self._is_rehearsed and num_unread > MAX_DRAFT
        if is_free or (self._num_drafts > FIRST_ROUNDS and not reads_much):
            self._steps.record(num_streams, max(0.0, seconds - self._call_s) / max(num_steps, 1))
