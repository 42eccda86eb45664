"""LongBatch: the rows of one forward that no graph has room for, just as many as there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt
import torch
import triton

from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.batch import DeviceRows, Tiles, length_of_chain, max_chunks
from slipstream.backends.torch.cuda.prompt_attention import BLOCK_FIELDS, Blocks
from slipstream.backends.torch.kv_pool import PAGE_SIZE
from slipstream.models.config import DecoderConfig

Ints = npt.NDArray[np.int32]
_ALIGNED = 32  # integers: kernels are compiled for how their arguments are aligned
_BLOCK_CHAIN = 64  # rows: shorter chains may see long texts, which the programs of a tile share


class LongBatch(DeviceRows):
    """Made for one launch. Arrays of numpy, since there are thousands of rows."""

    def __init__(
        self, config: DecoderConfig, parts: Sequence[SequenceRows], rows_a_block: int, device: torch.device
    ) -> None:
        group = config.num_heads // config.num_kv_heads
        self.block_m, self.splits = max(32, triton.next_power_of_2(group)), 4
        laid = _LaidRows(parts, self.block_m // group, rows_a_block)
        self.num_tiles = len(laid.tiles)
        tokens = chain.from_iterable((*part.pending, *part.tree.tokens) for part in parts)
        pieces = {
            "tokens": np.fromiter(tokens, np.int32, len(laid.slot)),
            "position": laid.position,
            "slot": laid.slot,
            "page_from": laid.page_from,
            "tiles": np.array(laid.tiles.laid_out(max_chunks(config)), np.int32),
            "tail": np.array(laid.tiles.tail, np.int32),
            "blocks": laid.blocks.ravel(),
            "pages": np.array(laid.pages, np.int32),
            "logit_rows": laid.logit_rows,
        }
        sent = _sent(pieces, device)
        if len(laid.blocks):
            self.blocks = Blocks(sent["blocks"], len(laid.blocks), sent["pages"], laid.num_block_pages)
        del sent["blocks"]
        for name, values in sent.items():
            setattr(self, name, values)


class _LaidRows:
    """Where the rows of all parts stand, and which share their keys."""

    def __init__(self, parts: Sequence[SequenceRows], rows_a_tile: int, rows_a_block: int) -> None:
        counts = [part.num_rows for part in parts]
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
        self.blocks = together[np.argsort(-together[:, 2], kind="stable")]  # those that see most begin first

    def _lay_pages(self, parts: Sequence[SequenceRows], is_block: Sequence[bool]) -> None:
        """The pages of all sequences, those that blocks read first."""
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


def _sent(pieces: dict[str, Ints], device: torch.device) -> dict[str, torch.Tensor]:
    """All of them in one copy."""
    sizes = [-(-max(len(values), 1) // _ALIGNED) * _ALIGNED for values in pieces.values()]
    starts = list(accumulate(sizes, initial=0))
    host = torch.zeros(starts[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
    whole = host.numpy()
    for values, start in zip(pieces.values(), starts, strict=False):
        whole[start : start + len(values)] = values
    sent = host.to(device, non_blocking=True)
    return {
        name: sent[start : start + len(values)] for (name, values), start in zip(pieces.items(), starts, strict=False)
    }
