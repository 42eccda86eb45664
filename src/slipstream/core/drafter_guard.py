"""DrafterGuard: calls drafters, and keeps their errors away from streams.

The text does not depend on the drafter. If a drafter raises or returns an invalid draft, the stream continues without
it. Other streams keep the drafter, and later streams start with it again.
"""

from __future__ import annotations

import logging
import math
import operator
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from slipstream.core.policy import Ask
from slipstream.core.stream import Drafter, Observation, Stream, reads_prompts
from slipstream.core.team import members_of
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree

log = logging.getLogger("slipstream")


class DrafterGuard:
    def __init__(self, vocab_size: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.vocab_size = vocab_size
        self._clock = clock
        self._begun: set[int] = set()  # streams that a drafter was told of, and not yet of their end
        self._warned: set[tuple[str, type[Exception]]] = set()  # each kind of failure is logged once

    def begin(self, stream: Stream) -> None:
        if stream.drafter is None:
            return
        self._begun.add(stream.id)
        try:
            stream.drafter.begin(stream)
        except Exception as error:
            self._give_up(stream, error)

    def propose(self, asks: Sequence[Ask]) -> tuple[list[DraftTree], dict[str, float]]:
        """Asks each drafter once for all its streams. Returns the drafts, and the seconds that each drafter took.

        Members of a team are asked one after another: where one has failed, its stream has no drafter any more.
        """
        draft_s: dict[str, float] = {}
        trees = [EMPTY_TREE] * len(asks)

        def ask(places: list[int]) -> None:
            for i, tree in zip(places, _proposals([asks[i] for i in places], self.vocab_size), strict=True):
                trees[i] = tree

        for drafter, places in _by_drafter([ask.drafter for ask in asks]):
            started = self._clock()
            self._call(ask, places, [ask.stream for ask in asks])
            draft_s[drafter.name] = draft_s.get(drafter.name, 0.0) + self._clock() - started
        return trees, draft_s

    def read_prompts(self, read: Sequence[tuple[Stream, int]]) -> None:
        """Lets drafters read prompts as far as the target has: so many tokens more of these streams."""
        readers = [(own, part) for part in read for own in members_of(part[0].drafter) if reads_prompts(own)]

        def read_at(places: list[int]) -> None:
            drafter: Any = readers[places[0]][0]
            drafter.read_prompts(*zip(*[readers[i][1] for i in places], strict=True))

        for _, places in _by_drafter([drafter for drafter, _ in readers]):
            self._call(read_at, places, [stream for _, (stream, _) in readers])

    def _call(self, call: Callable[[list[int]], None], places: list[int], streams: Sequence[Stream]) -> None:
        """Calls a drafter for the streams at these places that still have one. It may fail because of one stream: it is
        then called for each alone, and given up only for streams where it fails again."""
        places = [i for i in places if streams[i].drafter]
        try:
            if places:
                call(places)
        except Exception as error:
            if len(places) == 1:
                self._give_up(streams[places[0]], error)
                return
            for i in places:
                self._call(call, [i], streams)

    def observe(self, observations: Sequence[Observation]) -> None:
        running = [o for o in observations if not o.stream.is_complete]
        for drafter, members in _by_drafter([o.stream.drafter for o in running]):
            try:
                drafter.observe([running[i] for i in members])
            except Exception as error:  # the failing stream is unknown, and a second call would report the others twice
                for i in members:
                    self._give_up(running[i].stream, error)

    def end(self, stream: Stream) -> None:
        if stream.id in self._begun and stream.drafter:
            self._begun.discard(stream.id)
            try:
                stream.drafter.end(stream)
            except Exception as error:  # the stream is over: no stream is affected, but memory held for it may leak
                self._warn(stream.drafter, f"could not end a stream: {_described(error)}", error)

    def _give_up(self, stream: Stream, error: Exception) -> None:
        assert stream.drafter is not None
        message = self._warn(stream.drafter, f"failed, the stream continues without it: {_described(error)}", error)
        self.end(stream)
        stream.drafter = None
        stream.stats.drafter_error = message

    def _warn(self, drafter: Drafter, what: str, error: Exception) -> str:
        message = f"drafter {drafter.name} {what}"
        if (drafter.name, type(error)) not in self._warned:
            self._warned.add((drafter.name, type(error)))
            log.warning(message)
            log.debug("the drafter's traceback", exc_info=error)
        return message


def _proposals(asks: Sequence[Ask], vocab_size: int) -> list[DraftTree]:
    """One drafter's valid drafts. Raises what it raises, and TypeError or ValueError for what is not a draft."""
    for ask in asks:
        ask.stream.least_chance = ask.least_chance
    budgets = [ask.budget for ask in asks]
    proposals = list(asks[0].drafter.propose([ask.stream for ask in asks], budgets))
    if len(proposals) == len(asks) and _need_no_change(proposals, budgets, vocab_size):
        return [tree or EMPTY_TREE for tree in proposals]
    return [checked(t, n, vocab_size) for t, n in zip(proposals, budgets, strict=True)]


def checked(tree: object, budget: int, vocab_size: int) -> DraftTree:
    """The drafter's result as a valid draft: ids and confidences are plain numbers, within the budget, cut before the
    first token that the target does not have.

    Raises TypeError or ValueError if it is not a draft.
    """
    if not isinstance(tree, DraftTree):
        raise TypeError(f"the proposal is a {type(tree).__name__}; expected a DraftTree")
    if not tree:
        return EMPTY_TREE
    if not _are_sound([tree]):
        tree = DraftTree(
            tuple(map(operator.index, tree.tokens)),
            tuple(map(operator.index, tree.parents)),
            tuple(map(_chance, tree.confidence)),
            tree.proposals,
        )
    for token, proposal in zip(tree.tokens, tree.proposals, strict=False):
        _check_proposal(token, proposal)
    keep = min(budget, len(tree))
    if min(tree.tokens) < 0 or max(tree.tokens) >= vocab_size:
        keep = min(keep, next(i for i, token in enumerate(tree.tokens) if not 0 <= token < vocab_size))
    return tree if keep == len(tree) else tree.keep(range(keep))


def _need_no_change(trees: Sequence[DraftTree], budgets: Sequence[int], vocab_size: int) -> bool:
    """Whether `checked` would return each of these unchanged: in most rounds, so it looks at all of them at once."""
    if {*map(type, trees)} != {DraftTree} or any(tree.proposals for tree in trees) or not _are_sound(trees):
        return False
    tokens = [*chain.from_iterable([tree.tokens for tree in trees])]
    is_known = not tokens or (min(tokens) >= 0 and max(tokens) < vocab_size)
    return is_known and all(map(operator.le, map(len, trees), budgets))


def _are_sound(trees: Sequence[DraftTree]) -> bool:
    """Whether nothing has to be converted. This runs in every round, so it loops only in C; a sum shows any NaN."""
    for tree in trees:
        parents, num_nodes = tree.parents, len(tree.tokens)
        if len(parents) != num_nodes or len(tree.confidence) not in (0, num_nodes) or min(parents, default=0) < ROOT:
            return False
        if not all(map(operator.lt, parents, range(num_nodes))):
            return False
    ids = chain.from_iterable([(*tree.tokens, *tree.parents) for tree in trees])
    chances = [*chain.from_iterable([tree.confidence for tree in trees])]
    if not {*map(type, ids)} <= {int} or not {*map(type, chances)} <= {float}:
        return False
    return min(chances, default=0.0) >= 0 and max(chances, default=0.0) <= 1 and not math.isnan(sum(chances))


def _chance(confidence: Any) -> float:
    number = float(confidence)
    if not math.isfinite(number):
        raise ValueError(f"a confidence is {confidence}; expected a number from 0 to 1")
    return min(max(number, 0.0), 1.0)


def _check_proposal(token: int, proposal: Any) -> None:
    """The rejection verifier divides by it, so it has to be the distribution from which the token was drawn."""
    if proposal is None:
        return
    if not isinstance(proposal, np.ndarray) or proposal.ndim != 1 or not 0 <= token < len(proposal):
        raise ValueError(f"the distribution of token {token} has shape {np.shape(proposal)}; expected [vocab]")
    total = float(proposal.sum())  # within 1e-3: float32 sums of large vocabularies are off by about 1e-5
    if not abs(total - 1) < 1e-3 or float(proposal.min()) < 0 or not proposal[token] > 0:
        raise ValueError(
            f"the distribution of token {token} is invalid: its sum is {total}, or the token has probability 0"
        )


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _by_drafter(drafters: Sequence[Drafter | None]) -> list[tuple[Drafter, list[int]]]:
    """Each drafter with its places in the list."""
    groups: dict[int, tuple[Drafter, list[int]]] = {}
    for i, drafter in enumerate(drafters):
        if drafter:
            groups.setdefault(id(drafter), (drafter, []))[1].append(i)
    return list(groups.values())
