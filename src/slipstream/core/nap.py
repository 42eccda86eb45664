"""Nap: while nobody's drafts pay, a device that runs ahead of the host is left to do so.

Plain rounds cost less there where it is known that the next one is plain as well: the device is at it already. So until
a draft is found worth scoring, and again after a few rounds without one, all streams go on as if they had no drafter.
Now and then there is a look, in passing: free drafters propose while the device is busy with the plain round, and what
they say is judged by the token it brings. A draft that would pay ends the nap with the next round.

How often there is a look, and how soon a nap begins, follows from what rounds were seen to take. It is one nap for all
streams, since a single one that is awake keeps all others from running ahead.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Literal

_LOOKING_SHARE = 0.005  # of the time, for looks in passing
_SHORTEST_PERIOD, _LONGEST_PERIOD = 2, 64  # rounds from look to look: where looks are hidden, every other has one
_PATIENCE_S = 0.4  # of a plain round: what waiting for the next draft may cost, before the nap
_LEAST_PATIENCE, _MOST_PATIENCE = 1, 3  # rounds

Pace = Literal["ahead", "look", "waited for"]


class Nap:
    def __init__(self, runs_ahead: bool) -> None:
        """Where the device does not run ahead there is never a nap."""
        self._possible = runs_ahead
        self._patience = self._idle = _MOST_PATIENCE  # idle: rounds without a draft worth scoring, one after the other
        self._period = _SHORTEST_PERIOD
        self._until_look = 0
        self._announced = False  # the round before knew that this one would be plain
        self._seconds: dict[Pace, deque[float]] = {p: deque(maxlen=9) for p in ("ahead", "look", "waited for")}

    @property
    def is_on(self) -> bool:
        return self._possible and self._idle >= self._patience

    @property
    def looks(self) -> bool:
        """Whether drafters are asked in this round of the nap."""
        return self._until_look == 0

    @property
    def runs_ahead(self) -> bool:
        """Whether the device could start on this round before it was asked to."""
        return self._announced

    def heed(self, found: bool) -> None:
        """Drafters were asked in this round: whether one of them had something worth scoring."""
        self._idle = 0 if found else self._idle + 1
        if self.is_on:
            self._idle = _MOST_PATIENCE  # whatever patience will be

    def record(self, num_drafted: int, num_accepted: int, seconds: float) -> None:
        """A round of decoding is over: how many drafted tokens were scored in it and were right, and what it took."""
        if not self._possible:
            return
        if not num_drafted:
            self._measure("waited for" if not self._announced else "look" if self.looks else "ahead", seconds)
        elif not num_accepted:
            self._idle = self._patience - 1  # who was wrong is not waited for
        self._announced = self.is_on
        self._until_look = (self._until_look or self._period) - 1 if self.is_on else 0

    def interrupt(self) -> None:
        """A round with a prompt in it: no device could run ahead of that, and whoever is new deserves a look."""
        self._announced = False
        self._until_look = 0

    def _measure(self, pace: Pace, seconds: float) -> None:
        self._seconds[pace].append(seconds)
        if self._seconds["look"]:
            period = self._excess("look") / _LOOKING_SHARE
            self._period = round(max(_SHORTEST_PERIOD, min(_LONGEST_PERIOD, period)))
        if self._seconds["waited for"]:
            patience = _PATIENCE_S / max(self._excess("waited for"), 1e-9)
            self._patience = round(max(_LEAST_PATIENCE, min(_MOST_PATIENCE, patience)))

    def _excess(self, pace: Pace) -> float:
        """What such rounds take beyond those that run ahead, as a share; 0 before one was seen."""
        ahead_s = median(self._seconds["ahead"] or [0.0])
        return median(self._seconds[pace]) / ahead_s - 1 if ahead_s else 0.0
