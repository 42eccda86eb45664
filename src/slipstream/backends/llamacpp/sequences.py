"""Sequences: which stream has which sequence id of llama.cpp, and the cached tokens of closed streams."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.backends.llamacpp.context import Context
from slipstream.backends.llamacpp.shelf import Shelf, Shelved
from slipstream.core.prefix import common_prefix_length
from slipstream.core.tree import DraftTree
from slipstream.errors import CapacityError

_DRAFT_MARGIN = 64  # tokens a sequence may hold beyond its reserve while a draft is scored
_MAX_REMEMBERED = 16  # closed prompts kept for reuse, in the cache (each holds an id) and beside it


@dataclass(slots=True)
class Scored:
    """Rows of the last score in the cache that are not committed yet."""

    pending: tuple[int, ...]
    tree: DraftTree
    laid: list[int]  # the nodes of the one line of the draft that still lies there, from the root down


class LlamaSequence:
    """One stream's tokens. The first `num_stored` of them are in llama.cpp's memory, under `id`.

    The rest is read again with the next rows: a side branch that was accepted (its cells would not lie in the order
    of the text), and what a memory that can't be cut lost with what followed it. Implements `KVSequence` of the core.
    """

    def __init__(self, owner: Sequences, id: int, reserve: int, remember: bool = True) -> None:
        self._owner = owner
        self._context = owner.context
        self.id = id
        self.reserve = reserve
        self.remember = remember  # whether it may serve later streams once it is closed
        self.tokens: list[int] = []
        self.num_stored = 0
        self._scored: Scored | None = None
        self._has_loose_rows = False  # in memory, beyond what is stored: scored and not kept, or a score that broke off

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def unstored(self) -> list[int]:
        return self.tokens[self.num_stored :]

    @property
    def promised(self) -> int:
        """Cells it may come to hold."""
        return max(self.reserve, self.length) + _DRAFT_MARGIN

    @property
    def num_shareable(self) -> int:
        """Tokens that another sequence may begin with. A recurrent state is of all it has read, scored rows too."""
        return self.num_stored if self._context.facts.can_cut or not self._has_loose_rows else 0

    def begin_score(self) -> None:
        """Clears away a score that was not committed."""
        if self._has_loose_rows:
            self.cut(self.num_stored)
        self._scored = None
        self._has_loose_rows = True

    def scored(self, scored: Scored) -> None:
        """What was unstored is there now, and the scored rows after it."""
        self.num_stored = self.length
        self._scored = scored

    def commit(self, path: Sequence[int] = ()) -> None:
        if self._scored is None:
            raise RuntimeError("commit without a score before it")
        pending, tree, laid = self._scored.pending, self._scored.tree, self._scored.laid
        kept = common_prefix_length(laid, list(path))
        self.tokens += pending
        self.tokens += [tree.tokens[node] for node in path]
        self._scored, self._has_loose_rows = None, False
        self.num_stored += len(pending) + kept
        if kept < len(laid):
            self.cut(self.num_stored)

    def rewind(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"rewind to {length} of a sequence of {self.length} tokens")
        del self.tokens[length:]
        if self._has_loose_rows or self.num_stored > length:
            self.cut(min(self.num_stored, length))
        self._scored, self._has_loose_rows = None, False

    def cut(self, length: int) -> None:
        """Keeps the first `length` tokens in memory, or none where the memory can't be cut there."""
        self.num_stored = length
        if not self._context.cut(self.id, length):
            self._context.drop(self.id)
            self.num_stored = 0

    def fork(self) -> LlamaSequence:
        return self._owner.fork(self)

    def close(self) -> None:
        self._owner.close(self)


class Sequences:
    def __init__(self, context: Context, max_streams: int) -> None:
        self.context = context
        self._max_streams = max_streams
        self._free = list(range(context.facts.num_ids - 1, -1, -1))
        self._open: dict[int, LlamaSequence] = {}
        self._remembered: OrderedDict[int, LlamaSequence] = OrderedDict()  # closed, oldest first
        self._shelf = Shelf(_MAX_REMEMBERED, context.facts.num_cells, as_a_whole=not context.facts.can_cut)

    @property
    def num_open(self) -> int:
        return len(self._open)

    def can_open(self, reserve: int) -> bool:
        return len(self._open) < self._max_streams and self._has_cells(reserve + _DRAFT_MARGIN)

    def open(self, tokens: list[int], reserve: int) -> LlamaSequence:
        """A sequence that already holds the longest beginning of `tokens` known, short of the last token."""
        reserve = max(reserve, len(tokens))
        if not self.can_open(reserve):
            raise CapacityError(
                f"no room for a stream of {reserve} more tokens: {len(self._open)} of {self._max_streams} streams are "
                f"open, and the KV cache holds {self.context.facts.num_cells} tokens"
            )
        source, shared = self._longest_prefix(tokens)
        shelved = self._shelf.find(tokens[:-1], longer_than=shared)
        if shelved is None:
            sequence = self._new(reserve, source, shared)
            self._shelve_closed()
        else:
            self._shelve_closed()
            sequence = self._new(reserve, None, 0)
            self._bring_back(shelved, sequence, common_prefix_length(shelved.tokens, tokens[:-1]))
        return sequence

    def fork(self, source: LlamaSequence) -> LlamaSequence:
        if not self._has_cells(_DRAFT_MARGIN):
            raise CapacityError("the KV cache has no room for another branch")
        fork = self._new(source.length, source, source.num_shareable, remember=False)
        fork.tokens = list(source.tokens)
        return fork

    def close(self, sequence: LlamaSequence) -> None:
        """Remembers what the sequence holds; its id and its cells go when they are needed."""
        if self._open.pop(sequence.id, None) is not sequence:
            return
        sequence.rewind(sequence.length)
        if not sequence.remember or not sequence.num_stored:
            self.release(sequence.id)
            return
        self._remembered[sequence.id] = sequence
        while len(self._remembered) > _MAX_REMEMBERED:
            self.forget_oldest()

    def take(self) -> int:
        """An unused id. Raises CapacityError if streams and branches use all ids."""
        if not self._free and not self.forget_oldest():
            raise CapacityError(
                f"streams and branches of drafts use all {self.context.facts.num_ids} sequences of llama.cpp"
            )
        return self._free.pop()

    def release(self, id: int) -> None:
        """Empties the sequence and gives its id back."""
        self.context.drop(id)
        self._free.append(id)

    def forget_oldest(self) -> bool:
        """Frees the cached tokens of the first closed stream. False if there are none."""
        if not self._remembered:
            return False
        id, _ = self._remembered.popitem(last=False)
        self.release(id)
        return True

    def forget_closed(self) -> None:
        self._shelf.clear()
        while self.forget_oldest():
            pass

    def _shelve_closed(self) -> None:
        """Moves the tokens of closed streams out of the shared cache. On a GPU they stay until cells or ids are needed:
        its attention is not divided among threads by cells, and the cost of moving them was not measured.
        """
        if not (self.context.facts.is_shared and self.context.facts.on_cpu):
            return
        # Longest first: it may contain the others.
        for sequence in sorted(self._remembered.values(), key=lambda s: s.num_stored, reverse=True):
            tokens = sequence.tokens[: sequence.num_stored]
            if not self._shelf.covers(tokens) and not self._is_open(tokens):
                state = self.context.save(sequence.id)
                if state is not None:
                    self._shelf.put(Shelved(tokens, state))
            del self._remembered[sequence.id]
            self.release(sequence.id)

    def _is_open(self, tokens: list[int]) -> bool:
        """Whether an open stream has all of `tokens`, so that they will be cached when it closes."""
        if not self.context.facts.can_cut:
            return False
        return any(common_prefix_length(s.tokens[: s.num_stored], tokens) == len(tokens) for s in self._open.values())

    def _bring_back(self, shelved: Shelved, sequence: LlamaSequence, length: int) -> None:
        """Copies its first `length` tokens into the empty sequence, which stays empty if there is no room."""
        if self.context.restore(sequence.id, shelved.state):
            sequence.tokens, sequence.num_stored = shelved.tokens[:length], length
            if length < len(shelved.tokens):
                sequence.cut(length)

    def _new(self, reserve: int, source: LlamaSequence | None, shared: int, remember: bool = True) -> LlamaSequence:
        """An open sequence that begins with what `source` has stored of its first `shared` tokens."""
        if source is not None and source.id in self._remembered:
            self._remembered.move_to_end(source.id)  # not the one to be forgotten for its own reader's id
        sequence = LlamaSequence(self, self.take(), reserve, remember)
        if source is not None and shared:
            self.context.share(source.id, sequence.id, shared)
            sequence.tokens = source.tokens[:shared]
            sequence.num_stored = shared
        self._open[sequence.id] = sequence
        return sequence

    def _longest_prefix(self, tokens: list[int]) -> tuple[LlamaSequence | None, int]:
        best, longest = None, 0
        for sequence in (*self._remembered.values(), *self._open.values()):
            shared = min(common_prefix_length(sequence.tokens, tokens[:-1]), sequence.num_shareable)
            if shared > longest and (self.context.facts.can_cut or shared == sequence.num_shareable):
                best, longest = sequence, shared
        return best, longest

    def _has_cells(self, count: int) -> bool:
        if not self.context.facts.is_shared:
            return count - _DRAFT_MARGIN <= self.context.facts.num_cells
        return sum(s.promised for s in self._open.values()) + count <= self.context.facts.num_cells
