"""DrafterGuard: calls drafters so that a broken one never hurts a stream.

The text does not depend on the drafter, so one that raises is left out from then on: streams go on without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from slipstream.core.protocols import Drafter, Observation
from slipstream.core.stream import Stream
from slipstream.core.tree import EMPTY_TREE, DraftTree

log = logging.getLogger("slipstream")


class DrafterGuard:
    def __init__(self, vocab_size: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._vocab_size = vocab_size
        self._clock = clock
        self._streams: dict[int, Stream] = {}  # begun and not ended
        self._failed: dict[int, tuple[Drafter, str]] = {}

    def begin(self, stream: Stream) -> None:
        if stream.drafter is None:
            return
        if id(stream.drafter) in self._failed:
            self._detach(stream, self._failed[id(stream.drafter)][1])
            return
        self._streams[stream.id] = stream
        try:
            stream.drafter.begin(stream)
        except Exception as error:
            self._give_up(stream.drafter, error)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int], draft_s: dict[str, float]) -> list[DraftTree]:
        """Asks each drafter once for all its streams, and enters the seconds it took into `draft_s`."""
        trees = [EMPTY_TREE] * len(streams)
        for drafter, members in _by_drafter([s if n > 0 else None for s, n in zip(streams, budgets, strict=True)]):
            started = self._clock()
            try:
                proposals = drafter.propose([streams[i] for i in members], [budgets[i] for i in members])
                for i, tree in zip(members, proposals, strict=True):
                    trees[i] = self._checked(tree, budgets[i])
            except Exception as error:
                self._give_up(drafter, error)
            draft_s[drafter.name] = draft_s.get(drafter.name, 0.0) + self._clock() - started
        return trees

    def observe(self, observations: Sequence[Observation]) -> None:
        for drafter, members in _by_drafter([None if o.stream.done else o.stream for o in observations]):
            try:
                drafter.observe([observations[i] for i in members])
            except Exception as error:
                self._give_up(drafter, error)

    def end(self, stream: Stream) -> None:
        if self._streams.pop(stream.id, None) and stream.drafter:
            with suppress(Exception):  # the stream is over: a drafter that can't tidy up harms nobody
                stream.drafter.end(stream)

    def _checked(self, tree: DraftTree, budget: int) -> DraftTree:
        """The draft within its budget, cut before the first token that the target does not have."""
        bad = next((i for i, token in enumerate(tree.tokens) if not 0 <= token < self._vocab_size), len(tree))
        keep = min(budget, bad)
        return tree if keep == len(tree) else tree.keep(range(keep))

    def _give_up(self, drafter: Drafter, error: Exception) -> None:
        message = f"drafter {drafter.name} failed and is left out: {type(error).__name__}: {error}"
        log.warning(message)
        log.debug("the drafter's traceback", exc_info=error)
        self._failed[id(drafter)] = (drafter, message)
        for stream in [s for s in self._streams.values() if s.drafter is drafter]:
            self.end(stream)
            self._detach(stream, message)

    def _detach(self, stream: Stream, message: str) -> None:
        stream.drafter = None
        stream.stats.drafter_error = message


def _by_drafter(streams: Sequence[Stream | None]) -> list[tuple[Drafter, list[int]]]:
    """Indices of the streams of each drafter."""
    groups: dict[int, tuple[Drafter, list[int]]] = {}
    for i, stream in enumerate(streams):
        if stream and stream.drafter:
            groups.setdefault(id(stream.drafter), (stream.drafter, []))[1].append(i)
    return list(groups.values())
