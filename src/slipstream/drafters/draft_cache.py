"""DraftCache: a draft model's KV cache, synchronised with the streams it drafts for.

After a rejection the cache is rewound to where text and draft differ; earlier tokens are not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from slipstream.core.prefix import common_prefix_length
from slipstream.core.protocols import KVSequence, Model, ScoreRequest, Scores
from slipstream.core.stream import Stream
from slipstream.core.tree import ROOT

_CATCH_UP = 8  # unread tokens that may be read in the first drafting step; more are read before it


@dataclass(slots=True)
class Branch:
    """One branch of a draft: a sequence of the draft model, the tokens it has read, and those it reads next."""

    sequence: KVSequence
    read: list[int]
    unread: list[int]
    node: int = ROOT  # of the draft, with which `unread` ends
    depth: int = 0
    chance: float = 1.0  # of all drafted tokens up to here, as the draft model sees it

    def fork(self) -> Branch:
        """A second branch from the same place. Raises CapacityError if there is no room."""
        return Branch(self.sequence.fork(), list(self.read), [], self.node, self.depth, self.chance)

    def begin_draft(self, unread: list[int]) -> None:
        """Starts a new draft after what was read; `unread` is what the model has to read first."""
        self.unread, self.node, self.depth, self.chance = unread, ROOT, 0, 1.0

    def mark_read(self) -> None:
        self.sequence.commit()
        self.read += self.unread
        self.unread = []


def read_on(model: Model, branches: Sequence[Branch]) -> Iterator[Scores]:
    """Reads the unread tokens of each branch, as many branches per forward pass as fit.

    Yields each branch's scores in turn; they are valid until the next one.
    """
    start = 0
    while start < len(branches):
        end, rows = start, 0
        while end < len(branches) and (end == start or rows + len(branches[end].unread) <= model.info.max_rows):
            rows += len(branches[end].unread)
            end += 1
        scores = model.score([ScoreRequest(branch.sequence, branch.unread) for branch in branches[start:end]])
        for branch, score in zip(branches[start:end], scores, strict=True):
            branch.mark_read()
            yield score
        start = end


class DraftCache:
    def __init__(self, model: Model, context_of: Callable[[Stream], list[int]], growth: int) -> None:
        """`context_of`: a stream's text in the draft's tokens. `growth`: draft tokens for a target token, at most."""
        self._model = model
        self._context_of = context_of
        self._growth = growth
        self._branches: dict[int, list[Branch]] = {}  # empty for a stream that the draft model can't draft for
        self._reserves: dict[int, int] = {}

    def read_prompts(self, streams: Sequence[Stream], counts: Sequence[int]) -> None:
        """Reads so many tokens more of each stream, but not its last one."""
        known = [(stream, count) for stream, count in zip(streams, counts, strict=True) if stream.id in self._branches]
        self._read([(branch, count) for stream, count in known for branch in self._branches[stream.id]])
        for stream, count in zip(streams, counts, strict=True):
            if stream.id not in self._branches:  # one after the other, so that prompts share a common beginning
                self._open(stream, self._context_of(stream))
                self._read([(branch, count) for branch in self._branches[stream.id]])

    def _open(self, stream: Stream, context: list[int]) -> None:
        """Opens a sequence for a new stream, which begins with what the cache has of others. A stream too long for the
        draft model gets none."""
        self._branches[stream.id] = []
        wanted = self._growth * (len(context) + stream.max_answer_tokens)
        reserve = self._reserves[stream.id] = min(wanted, self._model.info.context_length)
        if self._readable(context, 0, 1, reserve) and self._model.can_open(reserve):
            sequence = self._model.open(context, reserve)
            branch = Branch(sequence, context[: sequence.length], context[sequence.length :])
            self._branches[stream.id].append(branch)

    def follow(self, stream: Stream, budget: int) -> list[Branch]:
        """The stream's one branch, rewound to the accepted text; `unread` has the rest.

        The list is the cache's own: branches added to it are closed on the next call. Empty if the draft model can't
        draft for this stream.
        """
        context = self._context_of(stream)
        if stream.id not in self._branches:
            self._open(stream, context)
        branches = self._branches[stream.id]
        if not branches:
            return []
        best = max(branches, key=lambda branch: common_prefix_length(branch.read, context))
        keep = max(0, min(common_prefix_length(best.read, context), len(context) - 1))
        if not self._readable(context, keep, budget, self._reserves[stream.id]):
            return []
        if keep < len(best.read):
            best.sequence.rewind(keep)
            del best.read[keep:]
        for branch in branches:
            if branch is not best:
                branch.sequence.close()
        best.begin_draft(context[keep:])
        branches[:] = [best]
        return branches

    def close(self, stream_id: int) -> None:
        self._reserves.pop(stream_id, None)
        for branch in self._branches.pop(stream_id, ()):
            branch.sequence.close()

    def catch_up(self, branches: Sequence[Branch]) -> None:
        """Reads the tokens of all branches that are far behind, so that the first drafting step has few rows."""
        limit = min(_CATCH_UP, self._model.info.max_rows)
        self._read([(branch, len(branch.unread)) for branch in branches if len(branch.unread) > limit])

    def _read(self, counts: Sequence[tuple[Branch, int]]) -> None:
        """Reads so many of the unread tokens of each branch, but not the last one, as many per forward pass as fit."""
        counts = [(branch, min(count, len(branch.unread) - 1)) for branch, count in counts]
        while counts := [(branch, count) for branch, count in counts if count > 0]:
            parts, left, rows_left = [], [], self._model.info.max_rows
            for branch, count in counts:
                part = branch.unread[: min(count, rows_left)]
                rows_left -= len(part)
                left.append((branch, count - len(part)))
                if part:
                    parts.append((branch, part))
            counts = left
            self._model.score([ScoreRequest(branch.sequence, part) for branch, part in parts])
            for branch, part in parts:
                branch.sequence.commit()
                branch.read += part
                del branch.unread[: len(part)]

    def _readable(self, context: list[int], start: int, budget: int, reserve: int) -> bool:
        """Whether the text fits in the reserved space, and the draft has all ids from `start` on (padding may be
        missing).

        A text may have more tokens in the draft's vocabulary than in the target's.
        """
        fits = bool(context) and len(context) + budget <= reserve
        return fits and self._model.info.can_read(max(context[start:]))
