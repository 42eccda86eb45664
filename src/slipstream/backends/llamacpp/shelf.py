"""Shelf: cached tokens of closed streams, moved out of llama.cpp's cache, for streams that begin with them again.

Cells of other streams cost time. Attention goes over all cells up to the last used one, and a single row divides them
among the threads: if the first half belongs to other streams, one thread does all the work.
"""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass

from slipstream.core.prefix import common_prefix_length

State = ctypes.Array[ctypes.c_uint8]  # of one sequence, in llama.cpp's own format


@dataclass(frozen=True, slots=True, eq=False)
class Shelved:
    tokens: list[int]
    state: State


class Shelf:
    """Holds the most recently closed prompts, at most `max_prompts` and `max_tokens`.

    Any beginning of a prompt can be reused, unless it can only be used `as_a_whole`.
    """

    def __init__(self, max_prompts: int, max_tokens: int, as_a_whole: bool = False) -> None:
        self._max_prompts = max_prompts
        self._max_tokens = max_tokens
        self._as_a_whole = as_a_whole
        self._prompts: deque[Shelved] = deque()  # oldest first

    def __len__(self) -> int:
        return len(self._prompts)

    def covers(self, tokens: list[int]) -> bool:
        """Whether `tokens` are already stored here."""
        return any(self._shared(prompt, tokens) == len(tokens) for prompt in self._prompts)

    def put(self, shelved: Shelved) -> None:
        if not self._as_a_whole:
            covered = [p for p in self._prompts if common_prefix_length(p.tokens, shelved.tokens) == len(p.tokens)]
            for prompt in covered:
                self._prompts.remove(prompt)
        self._prompts.append(shelved)
        while len(self._prompts) > self._max_prompts or sum(len(p.tokens) for p in self._prompts) > self._max_tokens:
            self._prompts.popleft()

    def find(self, tokens: list[int], longer_than: int) -> Shelved | None:
        """The stored prompt with the longest common beginning with `tokens`, if that is longer than the given number.
        It becomes the most recent one.
        """
        best = max(self._prompts, key=lambda prompt: self._shared(prompt, tokens), default=None)
        if best is None or self._shared(best, tokens) <= longer_than:
            return None
        self._prompts.remove(best)
        self._prompts.append(best)
        return best

    def _shared(self, prompt: Shelved, tokens: list[int]) -> int:
        """How many of the first `tokens` it provides."""
        shared = common_prefix_length(prompt.tokens, tokens)
        return 0 if self._as_a_whole and shared < len(prompt.tokens) else shared

    def clear(self) -> None:
        self._prompts.clear()
