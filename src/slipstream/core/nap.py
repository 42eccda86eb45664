"""Nap: while nobody's drafts pay, drafters are left alone, and looked at again now and then.

On a device that runs ahead of the host, a plain round costs less where it is known that the next is plain as well. So
after a few rounds in which no draft was worth scoring, all streams are treated as if they had no drafter, except for a
look every so many rounds: as often as looks cost no more than 1 % of the time, by what rounds were seen to take. It is
one nap for all, since a single stream that is awake keeps all others from running ahead.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_LOOKING_SHARE = 0.01  # of the time, for looks in vain
_ROUNDS_A_LOOK = 2  # that don't run ahead: the look, and the round after it
_IDLE_ROUNDS = 4  # without a draft worth scoring, before the nap
_FIRST_PERIOD = 16  # rounds from one look to the next, before anything was measured
_SHORTEST_PERIOD, _LONGEST_PERIOD = 8, 64


class Nap:
    def __init__(self) -> None:
        self._idle = 0  # rounds without a draft worth scoring, one after the other
        self._until_look = _FIRST_PERIOD
        self._period = _FIRST_PERIOD
        self._slept = False  # through the round before
        self._seconds: dict[bool, deque[float]] = {True: deque(maxlen=9), False: deque(maxlen=9)}  # by: ran ahead

    def is_on(self, ahead: int = 0) -> bool:
        """Whether nothing is to be drafted in this round, or so many rounds ahead."""
        return self._idle >= _IDLE_ROUNDS and self._until_look != ahead

    def record(self, drafted: bool, seconds: float) -> None:
        """A round of decoding is over: whether a draft was worth scoring in it, and how long it took."""
        asleep = self.is_on()
        if drafted:
            self._idle = 0
        else:
            self._idle += 1
            self._measure(asleep and self._slept, seconds)
        if self._idle <= _IDLE_ROUNDS or self._until_look == 0:
            self._until_look = self._period
        self._until_look -= 1
        self._slept = asleep

    def interrupt(self) -> None:
        """A round that no device could run ahead of: the next one starts anew."""
        self._slept = False

    def end(self) -> None:
        """All streams are over; the next may be of another kind."""
        self._idle = 0

    def _measure(self, ran_ahead: bool, seconds: float) -> None:
        self._seconds[ran_ahead].append(seconds)
        if all(self._seconds.values()):
            ahead_s, other_s = median(self._seconds[True]), median(self._seconds[False])
            looks_apart = _ROUNDS_A_LOOK * (other_s / max(ahead_s, 1e-9) - 1) / _LOOKING_SHARE
            self._period = max(_SHORTEST_PERIOD, min(_LONGEST_PERIOD, round(looks_apart)))
