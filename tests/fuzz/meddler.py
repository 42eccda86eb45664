"""Meddler: cancels and drops answers in the middle of a round, at the points that watched parts report."""

from __future__ import annotations

import gc
import random

from fuzz.consumer import Consumer


class Meddler:
    """A hook that does nothing until it is given consumers, and never meddles while it is meddling.

    It stands for what finalisers and signal handlers do to a thread, but at points that the seed decides.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = random.Random(rng.randrange(1 << 30))
        self._chance = self._rng.choice([0.02, 0.1, 0.4])
        self._is_busy = False
        self.consumers: list[Consumer] = []
        self.errors: list[Exception] = []
        self.points: list[str] = []

    def __call__(self, point: str) -> None:
        if self._is_busy or not self.consumers or self._rng.random() >= self._chance:
            return
        self._is_busy = True
        try:
            self._meddle(point)
        except Exception as error:
            self.errors.append(error)
        finally:
            self._is_busy = False

    def _meddle(self, point: str) -> None:
        consumer = self._rng.choice(self.consumers)
        action = self._rng.choice(["cancel", "drop", "drop in a cycle"])
        self.points.append(f"{action} {point}")
        if action == "cancel":
            consumer.cancel()
            return
        consumer.drop(in_cycle=action == "drop in a cycle")
        gc.collect(0 if self._rng.random() < 0.5 else 2)
