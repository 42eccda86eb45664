"""Shelf: what closed streams left, taken out of llama.cpp's cache, for streams that begin with it again.

Cells of others are not free. Attention goes over all cells up to the last that is in use, and a single row divides
these among the threads: where the first half belongs to others, one thread does all the work.
"""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass

from slipstream.core.prefix import common_prefix

State = ctypes.Array[ctypes.c_uint8]  # of one sequence, in llama.cpp's own format


@dataclass(frozen=True, slots=True, eq=False)
class Shelved:
    tokens: list[int]
    state: State


class Shelf:
    """Holds the latest that closed, `max_prompts` and `max_tokens` at most.

    Each is there for all its beginnings, unless it is of use only `as_a_whole`.
    """

    def __init__(self, max_prompts: int, max_tokens: int, as_a_whole: bool = False) -> None:
        self._max_prompts = max_prompts
        self._max_tokens = max_tokens
        self._as_a_whole = as_a_whole
        self._prompts: deque[Shelved] = deque()  # oldest first

    def __len__(self) -> int:
        return len(self._prompts)

    def covers(self, tokens: list[int]) -> bool:
        """Whether `tokens` could be had of what is here already."""
        return any(self._shared(prompt, tokens) == len(tokens) for prompt in self._prompts)

    def put(self, shelved: Shelved) -> None:
        if not self._as_a_whole:
            covered = [p for p in self._prompts if common_prefix(p.tokens, shelved.tokens) == len(p.tokens)]
            for prompt in covered:
                self._prompts.remove(prompt)
        self._prompts.append(shelved)
        while len(self._prompts) > self._max_prompts or sum(len(p.tokens) for p in self._prompts) > self._max_tokens:
            self._prompts.popleft()

    def find(self, tokens: list[int], longer_than: int) -> Shelved | None:
        """The one that has the longest beginning of `tokens`, if that is longer than so many of them. It counts as the
        latest from then on."""
        best = max(self._prompts, key=lambda prompt: self._shared(prompt, tokens), default=None)
        if best is None or self._shared(best, tokens) <= longer_than:
            return None
        self._prompts.remove(best)
        self._prompts.append(best)
        return best

    def _shared(self, prompt: Shelved, tokens: list[int]) -> int:
        """How many of `tokens`, from the first on, can be had of it."""
        shared = common_prefix(prompt.tokens, tokens)
        return 0 if self._as_a_whole and shared < len(prompt.tokens) else shared

    def clear(self) -> None:
        self._prompts.clear()
