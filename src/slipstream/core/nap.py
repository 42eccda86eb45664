"""Nap: while nobody's drafts pay, drafters are left alone, and looked at again now and then.

On a device that runs ahead of the host, a plain round costs less where it is known that the next is plain as well. So
after a few rounds in which no draft was worth scoring, all streams are treated as if they had no drafter, except for a
look every so many rounds: as often as looks cost no more than 0.5 % of the time, by what rounds were seen to take. It
is one nap for all, since a single stream that is awake keeps all others from running ahead.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_LOOKING_SHARE = 0.005  # of the time, for looks in vain
_IDLE_ROUNDS = 3  # without a draft worth scoring, before the nap
_FIRST_PERIOD = 6  # rounds to the first look: long enough to see what running ahead saves
_SHORTEST_PERIOD, _LONGEST_PERIOD = 8, 64  # rounds between looks after that


class Nap:
    def __init__(self) -> None:
        self._idle = 0  # rounds without a draft worth scoring, one after the other
        self._until_look = _FIRST_PERIOD
        self._period = _SHORTEST_PERIOD
        self._announced = False  # the round before knew that this one would be plain
        self._seconds: dict[bool, deque[float]] = {True: deque(maxlen=9), False: deque(maxlen=9)}  # by: ran ahead

    def is_on(self, ahead: int = 0) -> bool:
        """Whether nothing is to be drafted in this round, or so many rounds ahead."""
        return self._idle >= _IDLE_ROUNDS and self._until_look != ahead

    @property
    def runs_ahead(self) -> bool:
        """Whether the device could start on this round before it was asked to."""
        return self._announced

    def record(self, drafted: bool, seconds: float) -> None:
        """A round of decoding is over: whether a draft was worth scoring in it, and how long it took."""
        if not drafted:
            self._measure(self._announced, seconds)
        self._announced = self.is_on(ahead=1) and not drafted
        self._idle = 0 if drafted else self._idle + 1
        if self._idle <= _IDLE_ROUNDS:
            self._until_look = _FIRST_PERIOD
        elif self._until_look == 0:
            self._until_look = self._period
        self._until_look -= 1

    def interrupt(self) -> None:
        """A round that no device could run ahead of: the next one starts anew."""
        self._announced = False

    def end(self) -> None:
        """All streams are over; the next may be of another kind."""
        self._idle = 0

    def _measure(self, ran_ahead: bool, seconds: float) -> None:
        self._seconds[ran_ahead].append(seconds)
        if all(self._seconds.values()):
            ahead_s, other_s = median(self._seconds[True]), median(self._seconds[False])
            looks_apart = (other_s / max(ahead_s, 1e-9) - 1) / _LOOKING_SHARE
            self._period = max(_SHORTEST_PERIOD, min(_LONGEST_PERIOD, round(looks_apart)))
