"""CudaBatch: the rows of one forward in buffers that never move, so that a captured graph finds them again.

Everything the host sends for a forward is one block of integers, in one copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.kernels.prompt_attention import Blocks
from slipstream.core.tree import ROOT, DraftTree
from slipstream.models.config import DecoderConfig

if TYPE_CHECKING:
    from slipstream.backends.torch.kv_pool import PooledSequence

MAX_LEVELS = 16  # of a tree that the device grows
MAX_CHUNKS_BYTES = 1 << 28  # scratch of attention: the rows of all tiles of a forward, for each chunk of their keys
_ROW_FIELDS = ("tokens", "position", "slot", "page_from", "source")
TILE_FIELDS = ("row", "rows", "position", "base", "tail_from", "chunk", "scratch", "page_from", "programs")
TILE_SIZE = tl.constexpr(len(TILE_FIELDS))
_PLACES = [tl.constexpr(i) for i in range(len(TILE_FIELDS))]  # the index of each field, for kernels
TILE_ROW, TILE_ROWS, TILE_POSITION, TILE_BASE, TILE_TAIL_FROM = _PLACES[:5]
TILE_CHUNK, TILE_SCRATCH, TILE_PAGE_FROM, TILE_PROGRAMS = _PLACES[5:]
_NO_TILE = [int(name == "chunk") for name in TILE_FIELDS]
# From this capacity on most rows are the only one of their stream, and tiles are small. They took 0.7 of the time at 32
# to 256 streams; 2 % less in a round of 8 streams, 6 % less in one of 16, 7 % more with 16 rows of one text of 16,384.
_MANY_ROWS = 8
_MANY_TILES = 32  # this many keep a GPU busy with a program per tile and key head, which costs less than sharing tiles
SPLIT = tl.constexpr(1 << 16)  # an entry of `programs` is SPLIT * (its number among those of the tile) + tile
_IN_ORDER = 1 << 30  # as `base`: no position is looked up in `tail`
_CHUNK_TIERS = ((2048, 128), (8192, 256), (1 << 31, 512))  # up to this position: keys of a chunk


@triton.jit
def advance_rows(position, slot, tiles, i, inside):
    """Moves the rows `i` on by one position, in place. Tile i is that of row i alone."""
    tl.store(position + i, tl.load(position + i, mask=inside) + 1, mask=inside)
    tl.store(slot + i, tl.load(slot + i, mask=inside) + 1, mask=inside)
    tile_position = tiles + i * TILE_SIZE + TILE_POSITION
    tl.store(tile_position, tl.load(tile_position, mask=inside) + 1, mask=inside)


class DeviceRows:
    """The rows of a forward, as kernels read them. A row is in one tile, whose rows share their keys, up to each row's
    own position; or in one block, which is a large tile without branches.

    A row at `slot` s of its sequence is kept in page s // PAGE_SIZE of that sequence. A branch of a tree is a tile of
    its own: `tail` says in which slots its tokens are, from the position `base` on.
    """

    tokens: torch.Tensor  # [rows] int32, as all that follow
    position: torch.Tensor
    slot: torch.Tensor
    page_from: torch.Tensor  # where the pages of the row's sequence begin in `pages`
    tiles: torch.Tensor  # [tiles * TILE_SIZE], as TILE_FIELDS
    tail: torch.Tensor
    pages: torch.Tensor
    logit_rows: torch.Tensor  # which rows' logits are wanted
    num_tiles: int  # of a launch
    block_m: int  # queries of a tile: rows times the heads that share keys
    programs: torch.Tensor  # of attention, for each key head: which tile, and which share of it; -1: none
    blocks: Blocks | None = None


class CudaBatch(DeviceRows):
    """Room for `capacity` rows, in buffers that never move."""

    source: torch.Tensor  # in a draft: the row of the previous step that chooses this row's token
    progress: torch.Tensor  # [2] in a draft: steps taken, streams

    def __init__(
        self, config: DecoderConfig, capacity: int, max_pages: int, spare_page: int, device: torch.device
    ) -> None:
        group = config.num_heads // config.num_kv_heads
        self.capacity = capacity
        most = 32 if capacity < _MANY_ROWS else 16
        self.block_m = max(16, triton.next_power_of_2(group), min(most, triton.next_power_of_2(capacity * group)))
        self.num_tiles = capacity
        self._num_programs = num_programs(capacity)
        self._rows_a_tile = self.block_m // group
        self._max_chunks = max_chunks(config)
        self._spare_page = spare_page
        sizes = dict.fromkeys(_ROW_FIELDS, capacity) | {
            "progress": 2,
            "tiles": capacity * len(TILE_FIELDS),
            "programs": self._num_programs,
            "tail": capacity * max(MAX_LEVELS, min(capacity, 64)),
            "pages": max_pages + 1,
        }
        self._layout = dict(zip(sizes, _slices(sizes.values()), strict=True))
        length = sum(sizes.values())
        self._hosts = [_Host(length, device.type == "cuda") for _ in range(2)]
        self._device = torch.zeros(length, dtype=torch.int32, device=device)
        for name, place in self._layout.items():
            setattr(self, name, self._device[place])
        self.logit_rows = torch.arange(capacity, device=device)

    def fill(self, parts: Sequence[SequenceRows], ahead: int = 0, source: Sequence[int] = ()) -> None:
        """Lays out the rows of `parts` and sends them to the device.

        `ahead`: steps that the device will take after them. `source`: the rows of the previous step that choose their
        tokens.
        """
        self._send(self._laid_out(parts, ahead), source, len(parts))

    def fill_level(self, sequence: PooledSequence, ahead: int) -> None:
        """Lays out the first nodes of a tree after a sequence, one in each row. The device grows `ahead` levels."""
        laid, start, capacity = _LaidOut(pages=[self._spare_page]), sequence.length, self.capacity
        laid.tokens += [0] * capacity
        laid.position += [start] * capacity
        laid.slot += range(start, start + capacity)
        laid.page_from += [1] * capacity
        laid.tiles.add_level(start, capacity, ahead)
        laid.pages += sequence.pages
        self._send(laid, (), 1)

    def _laid_out(self, parts: Sequence[SequenceRows], ahead: int) -> _LaidOut:
        laid = _LaidOut(pages=[self._spare_page])
        for part in parts:
            self._lay(laid, part, ahead)
            laid.pages += part.sequence.pages
        return laid

    def _lay(self, laid: _LaidOut, part: SequenceRows, ahead: int) -> None:
        tree, start, num_rows = part.tree, part.start, part.num_rows
        row, page_from, num_pending = len(laid.tokens), len(laid.pages), len(part.pending)
        laid.tokens += part.pending
        laid.tokens += tree.tokens
        laid.slot += range(start, start + num_rows)
        laid.page_from += [page_from] * num_rows
        chain = num_pending + length_of_chain(tree)
        laid.position += range(start, start + chain)
        laid.tiles.add_chain(row, start, chain, page_from, self._rows_a_tile, ahead)
        if chain < num_rows:
            laid.position += laid.tiles.add_branches(part, row, page_from)

    def _send(self, laid: _LaidOut, source: Sequence[int], num_streams: int) -> None:
        """In as few writes as possible: each costs the host a microsecond or more, in every round."""
        self._hosts.reverse()  # the other one may still be on its way
        host, tiles = self._hosts[0], laid.tiles
        block: list[int] = []
        for values in (laid.tokens, laid.position, laid.slot, laid.page_from, source):
            block += values
            block += [0] * (self.capacity - len(values))  # rows that are not used write to the spare page
        block += (0, num_streams)
        of_tiles, programs = tiles.laid_out(self._max_chunks, self._num_programs)
        block += of_tiles
        block += _NO_TILE * (self.capacity - len(tiles))
        block += programs
        block += [-1] * (self._num_programs - len(programs))
        host.whole[: len(block)] = block
        tail, pages = self._layout["tail"].start, self._layout["pages"].start
        host.whole[tail : tail + len(tiles.tail)] = tiles.tail
        used = pages + len(laid.pages)
        host.whole[pages:used] = laid.pages
        self._device[:used].copy_(host.data[:used], non_blocking=True)


class _Host:
    """The integers of one copy, on the host."""

    def __init__(self, length: int, pinned: bool) -> None:
        self.data = torch.zeros(length, dtype=torch.int32, pin_memory=pinned)
        self.whole = self.data.numpy()


@dataclass(frozen=True, slots=True)
class _Tile:
    row: int
    rows: int
    position: int
    page_from: int
    base: int
    tail_from: int
    ahead: int  # steps that the device will take from here
    chunk: int  # keys of a chunk

    def num_chunks(self, stretch: int) -> int:
        return (self.position + self.rows - 1 + self.ahead) // (self.chunk * stretch) + 1


@dataclass(slots=True)
class _LaidOut:
    """The rows of a forward, one list for each field, and the pages of all sequences."""

    pages: list[int]
    tokens: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    slot: list[int] = field(default_factory=list)
    page_from: list[int] = field(default_factory=list)
    tiles: Tiles = field(default_factory=lambda: Tiles())


class Tiles:
    """Groups of rows that share their keys."""

    def __init__(self) -> None:
        self.tail: list[int] = []
        self._tiles: list[_Tile] = []

    def __len__(self) -> int:
        return len(self._tiles)

    def add_chain(self, row: int, start: int, count: int, page_from: int, rows_a_tile: int, ahead: int = 0) -> None:
        """Adds rows in the order of the text. Those of a tile have the same size of chunks."""
        while count:
            chunk = chunk_keys(start)
            take = min(count, rows_a_tile)
            while chunk_keys(start + take - 1) != chunk:
                take -= 1
            self._tiles.append(_Tile(row, take, start, page_from, _IN_ORDER, len(self.tail), ahead, chunk))
            row, start, count = row + take, start + take, count - take

    def add_branches(self, part: SequenceRows, row: int, page_from: int) -> list[int]:
        """Adds the nodes after the chain that the tree begins with, a tile each. Returns their positions."""
        tree, base, depths = part.tree, part.start + len(part.pending), part.tree.depths()
        positions = []
        for node in range(length_of_chain(tree), len(tree)):
            position = base + depths[node] - 1
            positions.append(position)
            place, chunk = row + len(part.pending) + node, chunk_keys(position)
            self._tiles.append(_Tile(place, 1, position, page_from, base, len(self.tail), 0, chunk))
            self.tail += [base + i for i in tree.path(node)]
        return positions

    def add_level(self, start: int, count: int, ahead: int) -> None:
        """Adds nodes that follow the text of the first sequence, a tile each, with room in `tail` for later levels."""
        for row in range(count):
            self._tiles.append(_Tile(row, 1, start, 1, start, len(self.tail), ahead, chunk_keys(start)))
            self.tail += [start + row, *[0] * (MAX_LEVELS - 1)]

    def laid_out(self, max_chunks: int, most_programs: int) -> tuple[list[int], list[int]]:
        """The fields of all tiles, and the programs that share them. Chunks are longer if scratch has no room for
        all of them.
        """
        stretch, rows = 1, [tile.rows for tile in self._tiles]
        counts = [tile.num_chunks(1) for tile in self._tiles]
        while sum(map(mul, counts, rows)) > max_chunks:
            stretch *= 2
            counts = [tile.num_chunks(stretch) for tile in self._tiles]
        laid: list[int] = []
        programs: list[int] = []
        scratch = 0
        shares = _shares(counts, most_programs)
        for i, (t, count, share) in enumerate(zip(self._tiles, counts, shares, strict=True)):
            laid += [t.row, t.rows, t.position, t.base, t.tail_from, t.chunk * stretch, scratch, t.page_from, share]
            programs += range(i, i + share * SPLIT.value, SPLIT.value)
            scratch += count * t.rows
        return laid, programs


def num_programs(tiles: int) -> int:
    """Programs of attention, for each key head: one tile of 16,384 tokens has a program for each of its 32
    chunks, and 8 tiles with 8 key heads have as many as run at the same time on 132 multiprocessors.
    """
    return tiles + min(tiles + 32, 48)


def _shares(counts: Sequence[int], most: int) -> list[int]:
    """Programs of each tile, given how many chunks it has: up to one for each chunk."""
    total, tiles = sum(counts), len(counts)
    if tiles >= _MANY_TILES:
        return [-(-count * _MANY_TILES // total) for count in counts]
    return [min(count, 1 + (count - 1) * (most - tiles) // max(total - tiles, 1)) for count in counts]


def max_chunks(config: DecoderConfig) -> int:
    """Chunks that scratch has room for, counted for each row."""
    return MAX_CHUNKS_BYTES // (4 * config.num_heads * config.head_dim)


def chunk_keys(position: int) -> int:
    """Keys of a chunk for a row at this position: few while the text is short, so that many programs share it."""
    for end, keys in _CHUNK_TIERS:
        if position < end:
            return keys
    raise ValueError(f"there is no position {position}")


def length_of_chain(tree: DraftTree) -> int:
    """The number of leading nodes that each follow the one before."""
    for node, parent in enumerate(tree.parents):
        if parent != (node - 1 if node else ROOT):
            return node
    return len(tree)


def _slices(sizes: Iterable[int]) -> Iterator[slice]:
    end = 0
    for size in sizes:
        yield slice(end, end + size)
        end += size
