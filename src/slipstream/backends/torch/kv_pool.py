"""KVPool: keys and values of all streams in pages. Sequences share pages, and old prompts stay until space is
needed.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence

import numpy as np
import torch

from slipstream.backends.torch.coded_cache import vector_width
from slipstream.backends.torch.trail import Trail
from slipstream.core.prefix import common_prefix_length
from slipstream.core.protocols import KVSequence
from slipstream.errors import CapacityError
from slipstream.models.config import DecoderConfig

PAGE_SIZE = 32  # tokens; the last, shared page of a prefix is copied when a stream writes on, so keep it small
_DRAFT_MARGIN = 64  # tokens a sequence may hold beyond its reserve while a draft is scored
_BRANCH_PAGES = 2  # that a branch of a draft may grow by
_MAX_REMEMBERED = 64  # closed prompts kept for reuse


class KVPool:
    """Pages of the cache. `keys[layer]` is [cells, kv_heads, width], and a cell is page * PAGE_SIZE + offset.

    The width is `coded_cache.vector_width` of a head.
    """

    def __init__(self, config: DecoderConfig, num_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.num_pages = max(1, -(-num_tokens // PAGE_SIZE))
        self.spare_page = self.num_pages  # for the padding rows of a launch
        cells = (self.num_pages + 1) * PAGE_SIZE
        shape = (config.num_layers, cells, config.num_kv_heads, vector_width(config.head_dim, dtype))
        self.keys = _zeros(shape, dtype, device)
        self.values = _zeros(shape, dtype, device)
        self._beside: list[torch.Tensor] = []  # caches of heads, in the same cells
        self._free = list(range(self.num_pages - 1, -1, -1))
        self._users = [0] * self.num_pages
        self._remembered: OrderedDict[int, PooledSequence] = OrderedDict()  # closed, oldest first
        self._open: dict[int, PooledSequence] = {}
        self.num_promised = 0  # pages that open sequences may still ask for
        self._num_reclaimable: int | None = None  # pages that only remembered sequences use; None: to be counted

    def add_cache(self, kv_heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds the cache of a head's layer, in the same cells. Returns keys and values [cells, kv_heads, width]."""
        shape = (self.keys.shape[1], kv_heads, vector_width(head_dim, self.keys.dtype))
        keys, values = (_zeros(shape, self.keys.dtype, self.keys.device) for _ in range(2))
        self._beside += (keys, values)
        return keys, values

    # -- streams --------------------------------------------------------------------------------------------------

    @property
    def longest_stream(self) -> int:
        """Tokens of the longest stream that fits, if it is alone."""
        return max(1, self.num_pages * PAGE_SIZE - _DRAFT_MARGIN)

    def can_open(self, reserve: int) -> bool:
        return self._unpromised() >= _pages(reserve + _DRAFT_MARGIN)

    def open(self, tokens: list[int], reserve: int) -> PooledSequence:
        """A sequence that already has the longest known beginning of `tokens`, without the last token."""
        reserve = max(reserve, len(tokens))
        if not self.can_open(reserve):
            raise CapacityError(
                f"the KV cache has no room for {reserve} more tokens: {len(self._open)} open streams reserve its "
                f"{self.num_pages * PAGE_SIZE} tokens"
            )
        sequence = PooledSequence(self, _pages(reserve + _DRAFT_MARGIN))
        source, shared = self._longest_prefix(tokens)
        if source is not None and shared:
            sequence.adopt(source, shared)
        return self._opened(sequence)

    def fork(self, source: PooledSequence) -> PooledSequence:
        if self._unpromised() < _BRANCH_PAGES + 1:  # one for its copy of the last page
            raise CapacityError("the KV cache has no room for another branch")
        sequence = PooledSequence(self, _pages(source.length) + _BRANCH_PAGES, remember=False)
        sequence.adopt(source, source.length)
        return self._opened(sequence)

    def _opened(self, sequence: PooledSequence) -> PooledSequence:
        self._open[id(sequence)] = sequence
        sequence.open()
        return sequence

    def close(self, sequence: PooledSequence) -> None:
        """Keeps the sequence for reuse; its pages are freed when they are needed."""
        if self._open.pop(id(sequence), None) is None:
            return
        sequence.rewind(sequence.length)  # room taken for drafts goes back
        sequence.promise_nothing()
        self._num_reclaimable = None
        if sequence.remember and sequence.length:
            self._remembered[id(sequence)] = sequence
        else:
            sequence.drop_pages()
        while len(self._remembered) > _MAX_REMEMBERED:
            self._forget_oldest()

    def forget_closed(self) -> None:
        """Frees the pages of all remembered sequences."""
        while self._remembered:
            self._forget_oldest()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def _longest_prefix(self, tokens: list[int]) -> tuple[PooledSequence | None, int]:
        best, longest, wanted = None, 0, tokens[:-1]
        for sequence in (*self._remembered.values(), *self._open.values()):
            if sequence.tokens[: longest + 1] != wanted[: longest + 1]:
                continue  # it shares no more than the best
            shared = common_prefix_length(sequence.tokens, wanted)
            if shared > longest:
                best, longest = sequence, shared
        return best, longest

    # -- pages ----------------------------------------------------------------------------------------------------

    def take_page(self) -> int:
        while not self._free and self._remembered:
            self._forget_oldest()
        if not self._free:
            raise CapacityError(f"the KV cache is full: all {self.num_pages * PAGE_SIZE} tokens are in use")
        page = self._free.pop()
        self._users[page] = 1
        return page

    def share_page(self, page: int) -> None:
        self._users[page] += 1
        self._num_reclaimable = None

    def drop_page(self, page: int) -> None:
        self._users[page] -= 1
        self._num_reclaimable = None
        if self._users[page] == 0:
            self._free.append(page)

    def is_shared(self, page: int) -> bool:
        return self._users[page] > 1

    def own_page(self, page: int) -> int:
        """A private copy of a shared page. Drops the shared one."""
        copy = self.take_page()
        self.move([page * PAGE_SIZE + i for i in range(PAGE_SIZE)], [copy * PAGE_SIZE + i for i in range(PAGE_SIZE)])
        self.drop_page(page)
        return copy

    @torch.inference_mode()
    def move(self, source: list[int], target: list[int]) -> None:
        """Copies cells, in all layers; source and target may overlap. The cell numbers are sent to a GPU only once:
        that takes longer than the copies.
        """
        places = torch.tensor([source, target], device=self.keys.device)
        for pool in (self.keys, self.values):
            pool[:, places[1]] = pool[:, places[0]]
        for cache in self._beside:
            cache[places[1]] = cache[places[0]]

    def _unpromised(self) -> int:
        """Pages that no open sequence has or has reserved."""
        if self._num_reclaimable is None:
            self._num_reclaimable = self._reclaimable()
        return len(self._free) + self._num_reclaimable - self.num_promised

    def _reclaimable(self) -> int:
        uses = Counter(page for sequence in self._remembered.values() for page in sequence.pages)
        return sum(self._users[page] == count for page, count in uses.items())

    def _forget_oldest(self) -> None:
        _, sequence = self._remembered.popitem(last=False)
        sequence.drop_pages()


class PooledSequence:
    """One stream's tokens and the pages that hold them. Implements `KVSequence` of the core."""

    def __init__(self, pool: KVPool, reserved_pages: int, remember: bool = True) -> None:
        self._pool = pool
        self.remember = remember  # whether it may serve later streams once it is closed
        self._reserved_pages = reserved_pages
        self.tokens: list[int] = []
        self.pages: list[int] = []
        self.pages_version = 0  # changes with `pages`
        self._is_open = False
        self._num_promised = 0  # pages it may still ask for, while it is open
        self._scored: tuple[list[int], tuple[int, ...]] | None = None  # pending and draft tokens of the last score
        self.trail: Trail | None = None  # what a head that follows it has to read
        self.head_length = 0  # tokens whose keys and values the head's cache has

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def is_followed(self) -> bool:
        """Whether a head reads what the target computes for it."""
        return self.trail is not None

    def open(self) -> None:
        self._is_open = True
        self._pages_changed()

    def promise_nothing(self) -> None:
        self._is_open = False
        self._pages_changed()

    def _pages_changed(self) -> None:
        """Counts the pages it may still ask for; one more where its last page is shared and will be copied."""
        self.pages_version += 1
        before = self._num_promised
        self._num_promised = max(0, self._reserved_pages - len(self.pages)) + bool(self.pages) if self._is_open else 0
        self._pool.num_promised += self._num_promised - before

    def cell(self, position: int) -> int:
        return self.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE

    def adopt(self, source: PooledSequence, length: int) -> None:
        """Begins with the first `length` tokens of another sequence, pages shared."""
        self.tokens = source.tokens[:length]
        self.head_length = max(0, min(source.head_length, length) - 1)  # the last one depends on the token after it
        self.pages = source.pages[: _pages(length)]
        for page in self.pages:
            self._pool.share_page(page)

    def prepare(self, pending: Sequence[int], draft: tuple[int, ...]) -> None:
        """Makes room to score these, in pages of its own."""
        self.make_room(len(pending) + len(draft))
        self._scored = (list(pending), draft)

    def make_room(self, count: int) -> None:
        """Pages of its own for `count` more tokens."""
        length, pages, pool = len(self.tokens), self.pages, self._pool
        for index in range(length // PAGE_SIZE, len(pages)):
            if pool.is_shared(pages[index]):
                pages[index] = pool.own_page(pages[index])
                self._pages_changed()
        while len(pages) * PAGE_SIZE < length + count:
            pages.append(pool.take_page())
            self._pages_changed()

    def keep(self, tokens: Sequence[int]) -> None:
        """Adds tokens whose keys and values are already written."""
        self.tokens += tokens
        self._scored = None

    def commit(self, path: Sequence[int] = ()) -> None:
        if self._scored is None:
            raise RuntimeError("commit without a score before it")
        pending, draft = self._scored
        if path:
            base = self.length + len(pending)
            moves = [(base + node, base + i) for i, node in enumerate(path) if node != i]
            if moves:
                self._pool.move([self.cell(source) for source, _ in moves], [self.cell(target) for _, target in moves])
        self.tokens += pending
        self.tokens += [draft[node] for node in path]
        if self.trail is not None:
            self.trail.keep(len(pending), path)
        self._scored = None

    def rewind(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"rewind to {length} of a sequence of {self.length} tokens")
        if self.trail is not None and length < self.length:
            self.trail.forget()
        self.head_length = min(self.head_length, length)
        del self.tokens[length:]
        self._scored = None
        for page in self.pages[_pages(length) :]:
            self._pool.drop_page(page)
        del self.pages[_pages(length) :]
        self._pages_changed()

    def fork(self) -> PooledSequence:
        return self._pool.fork(self)

    def close(self) -> None:
        self._pool.close(self)

    def drop_pages(self) -> None:
        for page in self.pages:
            self._pool.drop_page(page)
        self.pages, self.tokens = [], []
        self._pages_changed()


def own_sequence(sequence: KVSequence) -> PooledSequence:
    assert isinstance(sequence, PooledSequence)
    return sequence


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, since a masked NaN would still make a sum NaN. On the CPU, untouched pages take no memory."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    item = torch.empty(0, dtype=dtype).element_size()
    lazily = np.zeros(math.prod(shape) * item, np.uint8)  # calloc; torch.zeros would write them all
    return torch.from_numpy(lazily).view(dtype).view(shape)


def tokens_for(streams: int, reserve: int) -> int:
    """Tokens of a pool in which `streams` sequences can be open at once, each with this reserve."""
    return (streams * (_pages(reserve + _DRAFT_MARGIN) + 1) + 1) * PAGE_SIZE


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE)
