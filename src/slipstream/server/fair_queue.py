"""FairQueue: who is next. First come, first served, with a fair share between API keys."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """The next is the oldest of the key that has the fewest running; keys with equally many take turns by age."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[tuple[int, Item]]] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def num_running(self) -> int:
        return self._running.total()

    def add(self, key: str, item: Item) -> None:
        self._arrivals += 1
        self._waiting.setdefault(key, deque()).append((self._arrivals, item))

    def start_next(self) -> tuple[str, Item] | None:
        """Takes the next one out; it counts as running until `finished`. None if nobody waits."""
        if not self._waiting:
            return None
        key = min(self._waiting, key=lambda k: (self._running[k], self._waiting[k][0][0]))
        _, item = self._waiting[key].popleft()
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
        entries = self._waiting.get(key, deque())
        found = next((entry for entry in entries if entry[1] is item), None)
        if found is None:
            return False
        entries.remove(found)
        if not entries:
            del self._waiting[key]
        return True
