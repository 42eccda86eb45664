"""Naps: streams whose drafts don't pay stop asking for them, and look again now and then.

On a device that runs ahead of the host, a plain round costs less where it is known that the next is plain as well. So
a stream for which nothing was worth scoring for a while is treated as if it had no drafter, except in every 4th round
or so: as often as the looking costs no more than 1 % of the time, by what rounds of both kinds were seen to take. All
streams wake in the same rounds, since one that is awake keeps all from running ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

from slipstream.core.protocols import Observation
from slipstream.core.stream import Stream

_LOOKING_SHARE = 0.01  # of the time, for looks in vain
_IDLE_ROUNDS = 4  # rounds without a draft worth scoring, before a stream naps
_FIRST_PERIOD = 4  # rounds from one look to the next, before anything was measured
_LONGEST_PERIOD = 64


class Naps:
    def __init__(self) -> None:
        self._round = 0
        self._next_look = 0  # the round in which all are awake
        self._idle: dict[int, int] = {}  # by stream: rounds it was asked in vain, one after the other
        self._period = _FIRST_PERIOD
        self._seconds: dict[bool, deque[float]] = {True: deque(maxlen=9), False: deque(maxlen=9)}  # by: all asleep

    def is_asleep(self, stream: Stream, ahead: int = 0) -> bool:
        """Whether it needs no draft in this round, or so many rounds ahead."""
        return self._idle.get(stream.id, 0) >= _IDLE_ROUNDS and self._round + ahead != self._next_look

    def record(self, observations: Iterable[Observation], seconds: float) -> None:
        """A round of decoding is over, and took so long."""
        observations = list(observations)
        if observations and not any(o.scored for o in observations):
            self._measure(all(self.is_asleep(o.stream) for o in observations), seconds)
        for o in observations:
            if o.scored:
                self._idle.pop(o.stream.id, None)
            elif not self.is_asleep(o.stream):
                self._idle[o.stream.id] = self._idle.get(o.stream.id, 0) + 1
        if self._round == self._next_look:
            self._next_look += self._period
        self._round += 1

    def forget(self, stream: Stream) -> None:
        self._idle.pop(stream.id, None)

    def _measure(self, asleep: bool, seconds: float) -> None:
        self._seconds[asleep].append(seconds)
        if all(self._seconds.values()):
            awake_s, asleep_s = median(self._seconds[False]), median(self._seconds[True])
            looks_apart = (awake_s / max(asleep_s, 1e-9) - 1) / _LOOKING_SHARE
            self._period = max(2, min(_LONGEST_PERIOD, round(looks_apart)))
