"""LongBatch: the rows of a forward that reads prompts: exactly those, or padded to the room of a captured graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt
import torch
import triton

from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.batch import DeviceRows, Tiles, length_of_chain, max_chunks, num_programs
from slipstream.backends.torch.cuda.kernels.prompt_attention import BLOCK_FIELDS, Blocks
from slipstream.backends.torch.kv_pool import PAGE_SIZE
from slipstream.models.config import DecoderConfig

Ints = npt.NDArray[np.int32]
_ALIGNED = 32  # integers: kernels are compiled for how their arguments are aligned
_BLOCK_CHAIN = 64  # rows; shorter chains are tiles: they may see long texts, which several programs of a tile share
_ROOM_ROWS = 64  # rooms have a multiple of this many rows: at 512 rows 6 % of them are unused, on average
_ROOM_STREAMS = 16  # most streams of a room. Each has a row of logits: 16 take 0.02 ms longer than one


@dataclass(frozen=True, slots=True)
class Room:
    """The rows and pages that a graph is captured for."""

    rows: int
    pages: int


class LongBatch(DeviceRows):
    """Arrays of numpy, since there are thousands of rows."""

    def __init__(self, config: DecoderConfig, laid: LaidRows, device: torch.device, room: Room | None = None) -> None:
        """Without `room` for these rows alone, else for all rows that fit into it."""
        self.block_m = _block_m(config)
        self._max_chunks = max_chunks(config)
        self._room = room
        self.num_tiles = len(laid.tiles)
        pieces = self._pieces(laid)
        self._sent = _Sent(pieces, device)
        for name in pieces.keys() - {"blocks"}:
            setattr(self, name, self._sent.piece(name))
        if len(laid.blocks):
            blocks, num_pages = self._sent.piece("blocks"), room.pages if room else laid.num_block_pages
            self.blocks = Blocks(blocks, self.pages, num_pages)

    def fill(self, laid: LaidRows) -> None:
        """Sends other rows, which have the same room."""
        self._sent.send(self._pieces(laid))

    def _pieces(self, laid: LaidRows) -> dict[str, Ints]:
        tiles, programs = laid.tiles.laid_out(self._max_chunks, num_programs(self.num_tiles))
        pieces = {
            "tokens": laid.tokens,
            "position": laid.position,
            "slot": laid.slot,
            "page_from": laid.page_from,
            "tiles": np.array(tiles, np.int32),
            "programs": np.array(programs, np.int32),
            "tail": np.array(laid.tiles.tail, np.int32),
            "blocks": laid.blocks.ravel(),
            "pages": np.array(laid.pages, np.int32),
            "logit_rows": laid.logit_rows,
        }
        if self._room:
            rows, pages = self._room.rows, self._room.pages
            for name in ("tokens", "position", "slot"):
                pieces[name] = _padded(pieces[name], rows)
            pieces["page_from"] = _padded(laid.page_from, rows, pages - 1)  # rows that are not used have a spare page
            pieces["pages"] = _padded(pieces["pages"], pages, laid.spare_page)
            num_blocks = rows // laid.rows_a_block + _ROOM_STREAMS
            pieces["blocks"] = _padded(pieces["blocks"], num_blocks * len(BLOCK_FIELDS))
            pieces["logit_rows"] = _padded(laid.logit_rows, _ROOM_STREAMS)
        return pieces


def lay_rows(config: DecoderConfig, parts: Sequence[SequenceRows], rows_a_block: int, spare_page: int) -> LaidRows:
    """Lays out rows for a batch of this model."""
    rows_a_tile = _block_m(config) // (config.num_heads // config.num_kv_heads)
    return LaidRows(parts, rows_a_tile, rows_a_block, spare_page)


def _block_m(config: DecoderConfig) -> int:
    group: int = triton.next_power_of_2(config.num_heads // config.num_kv_heads)
    return max(32, group)


class LaidRows:
    """The layout of the rows of all parts, and which of them share their keys."""

    def __init__(self, parts: Sequence[SequenceRows], rows_a_tile: int, rows_a_block: int, spare_page: int) -> None:
        self.rows_a_block = rows_a_block
        self.spare_page = spare_page
        counts = [part.num_rows for part in parts]
        tokens = chain.from_iterable((*part.pending, *part.tree.tokens) for part in parts)
        self.tokens = np.fromiter(tokens, np.int32, sum(counts))
        ends = list(accumulate(counts))
        chains = [len(part.pending) + length_of_chain(part.tree) for part in parts]
        self._lay_pages(parts, [length >= _BLOCK_CHAIN for length in chains])
        self.slot = _ranges((part.start, part.start + part.num_rows) for part in parts)
        self.position = self.slot.copy()
        self.page_from = np.repeat(np.array(self._page_starts, np.int32), counts)
        self.logit_rows = _ranges((end - len(part.tree) - 1, end) for part, end in zip(parts, ends, strict=True))
        self.tiles = Tiles()
        blocks = [np.empty((0, len(BLOCK_FIELDS)), np.int32)]
        for part, end, length, page_from in zip(parts, ends, chains, self._page_starts, strict=True):
            row = end - part.num_rows
            if length < _BLOCK_CHAIN:
                self.tiles.add_chain(row, part.start, length, page_from, rows_a_tile)
            else:
                blocks.append(_blocks(row, part.start, length, page_from, rows_a_block))
            if length < part.num_rows:
                self.position[row + length : end] = self.tiles.add_branches(part, row, page_from)
        together = np.concatenate(blocks)
        self.blocks = together[np.argsort(-together[:, 2], kind="stable")]  # those that see the most keys start first

    @property
    def room(self) -> Room | None:
        """The smallest room for these rows. None if no graph fits: some are in tiles, or too many have logits."""
        if len(self.tiles) or len(self.logit_rows) > _ROOM_STREAMS:
            return None
        rows = -(-len(self.tokens) // _ROOM_ROWS) * _ROOM_ROWS
        return Room(rows, triton.next_power_of_2(len(self.pages) + 1))

    def _lay_pages(self, parts: Sequence[SequenceRows], is_block: Sequence[bool]) -> None:
        """Lists the pages of all sequences, first those that blocks read."""
        self.pages: list[int] = []
        self._page_starts = [0] * len(parts)
        for i in sorted(range(len(parts)), key=lambda i: not is_block[i]):
            self._page_starts[i] = len(self.pages)
            self.pages += parts[i].sequence.pages
        self.num_block_pages = sum(len(p.sequence.pages) for p, own in zip(parts, is_block, strict=True) if own)


def _ranges(bounds: Iterable[tuple[int, int]]) -> Ints:
    return np.concatenate([np.arange(begin, end, dtype=np.int32) for begin, end in bounds])


def _blocks(row: int, start: int, count: int, page_from: int, rows_a_block: int) -> Ints:
    """[blocks, BLOCK_SIZE] of a chain, as BLOCK_FIELDS has them."""
    first = np.arange(0, count, rows_a_block, dtype=np.int32)
    rows = np.minimum(rows_a_block, count - first)
    return np.stack([row + first, rows, start + first, np.full_like(first, page_from * PAGE_SIZE)], axis=1).astype(
        np.int32
    )


def _padded(values: Ints, length: int, value: int = 0) -> Ints:
    return np.pad(values, (0, length - len(values)), constant_values=value)


class _Sent:
    """Arrays that go to the device in one copy."""

    def __init__(self, pieces: dict[str, Ints], device: torch.device) -> None:
        sizes = [-(-max(len(values), 1) // _ALIGNED) * _ALIGNED for values in pieces.values()]
        starts = accumulate(sizes, initial=0)
        self._places = {
            name: slice(start, start + len(values))
            for (name, values), start in zip(pieces.items(), starts, strict=False)
        }
        self._host = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.empty(sum(sizes), dtype=torch.int32, device=device)
        self.send(pieces)

    def piece(self, name: str) -> torch.Tensor:
        return self._device[self._places[name]]

    def send(self, pieces: dict[str, Ints]) -> None:
        """Sends arrays of the same sizes. The copy before has ended, since each forward is waited for."""
        whole = self._host.numpy()
        for name, values in pieces.items():
            whole[self._places[name]] = values
        self._device.copy_(self._host, non_blocking=True)
