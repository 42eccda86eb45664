"""Prophet: a drafter that knows the expected answers, so that long paths and side branches are really accepted."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fuzz.oracle import Answer
from slipstream.core.stream import Observation, Stream
from slipstream.core.tree import DraftTree, TreeBuilder

Key = tuple[tuple[int, ...], int]  # prompt, and the identity of the sampling settings


class Prophet:
    """Random trees and chains in which a token on the right path is right with chance `p`.

    `answers` may be filled later. A stream that is not in it gets random tokens.
    """

    is_free = True

    def __init__(self, rng: random.Random, vocab: int, p: float, is_tree: bool) -> None:
        self.name = "prophet"
        self.answers: dict[Key, Answer] = {}
        self._rng = random.Random(rng.randrange(1 << 30))
        self._vocab, self._p, self._is_tree = vocab, p, is_tree

    def begin(self, stream: Stream) -> None:
        pass

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        return [self._tree(stream, budget) for stream, budget in zip(streams, budgets, strict=True)]

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def end(self, stream: Stream) -> None:
        pass

    def _tree(self, stream: Stream, budget: int) -> DraftTree:
        builder = TreeBuilder()
        for _ in range(budget):
            parent = self._rng.randint(-1, len(builder) - 1) if self._is_tree else len(builder) - 1
            builder.add(parent, self._token(stream, builder.path_tokens(parent)), self._rng.random())
        return builder.build()

    def _token(self, stream: Stream, path: list[int]) -> int:
        """The right token after `path` if `path` is right so far, or a random one."""
        key = (tuple(stream.tokens[: stream.prompt_length]), id(stream.sampling))
        answer = self.answers.get(key)
        before = [*stream.answer, *path]
        if answer and self._rng.random() < self._p and list(answer.tokens[: len(before)]) == before != [*answer.tokens]:
            return answer.tokens[len(before)]
        return self._rng.randrange(self._vocab)
