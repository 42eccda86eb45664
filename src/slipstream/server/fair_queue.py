"""FairQueue: who is next. First come, first served, with a fair share between API keys."""

from __future__ import annotations

from collections import Counter, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """The next is the oldest of the key that has the fewest running; keys with equally many take turns."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}
        self._running: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()  # by key: the number of its last start; 0: none yet
        self._starts = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, key: str, item: Item) -> None:
        self._waiting.setdefault(key, deque()).append(item)

    def start_next(self) -> tuple[str, Item] | None:
        """Takes the next one out; it counts as running until `finished`. None if nobody waits."""
        if not self._waiting:
            return None
        key = min(self._waiting, key=lambda k: (self._running[k], self._turns[k]))
        item = self._waiting[key].popleft()
        self._starts += 1
        self._turns[key] = self._starts
        if not self._waiting[key]:
            del self._waiting[key]
        self._running[key] += 1
        return key, item

    def finished(self, key: str) -> None:
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]

    def remove(self, key: str, item: Item) -> bool:
        """Takes one out that still waits. False if it does not."""
        items = self._waiting.get(key, deque())
        if item not in items:
            return False
        items.remove(item)
        if not items:
            del self._waiting[key]
        return True
