"""Attention for long queries, in Triton's interpreter: blocks over pages, against plain torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.kernels.prompt_attention import Blocks, BlockShape, PromptAttention
from slipstream.backends.torch.cuda.long_batch import LongBatch, Room, lay_rows
from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool
from slipstream.backends.torch.ops import LayerCache
from slipstream.core.tree import DraftTree
from slipstream.models.config import DecoderConfig
from slipstream.models.shapes import SHAPES

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the same kernels on the GPU")
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 24  # a head size that is no power of two


def config(window: int | None = None) -> DecoderConfig:
    from dataclasses import replace

    return replace(
        SHAPES["qwen-0.5b"], num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, num_layers=1,
        sliding_window=window,
    )  # fmt: skip


@pytest.mark.parametrize("tma", [False, True], ids=["pointers", "descriptors"])
@pytest.mark.parametrize("window", [None, 20])
def test_blocks_see_what_plain_attention_sees(window: int | None, tma: bool) -> None:
    torch.manual_seed(0)
    start, length, rows_a_block = 20, 100, 16
    pages = torch.tensor([3, 0, 2, 1], dtype=torch.int32)
    keys, values = torch.randn(2, 4 * PAGE_SIZE, KV_HEADS, HEAD_DIM)
    queries = torch.randn(length - start, (HEADS + 2 * KV_HEADS) * HEAD_DIM)  # keys and values stand behind them
    fields = [
        [row, min(rows_a_block, len(queries) - row), start + row, 0] for row in range(0, len(queries), rows_a_block)
    ]
    attention = PromptAttention(config(window), torch.float32, torch.device("cpu"))
    attention._shape, attention._has_tma = BlockShape(32, 16, 4, 2), tma
    out = torch.full((len(queries), HEADS * HEAD_DIM), float("nan"))
    blocks = Blocks(torch.tensor(fields, dtype=torch.int32).flatten(), pages, len(pages))
    attention.attend(queries, blocks, LayerCache(keys, values), out)
    cells = (pages.long()[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()[:length]
    torch.testing.assert_close(out, expected(queries, keys[cells], values[cells], start, window), rtol=0, atol=1e-5)


def expected(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, window: int | None
) -> torch.Tensor:
    q = queries[:, : HEADS * HEAD_DIM].view(len(queries), HEADS, HEAD_DIM)
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (keys, values))
    position, key = torch.arange(start, len(keys))[:, None], torch.arange(len(keys))[None, :]
    hidden = key > position if window is None else (key > position) | (key <= position - window)
    scores = torch.einsum("rhd,khd->hrk", q, k) * HEAD_DIM**-0.5
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hrk,khd->rhd", weights, v).reshape(len(queries), -1)


def test_chains_of_many_rows_become_blocks_and_others_tiles() -> None:
    """A prompt, a stream that decodes, and a prompt with a draft that branches."""
    pool = KVPool(config(), 2048, torch.float32, torch.device("cpu"))
    sequences = [pool.open([], 200) for _ in range(3)]
    draft = DraftTree((7, 8, 9), (-1, 0, 0))
    pending = [list(range(100)), [5], list(range(70))]
    for sequence, tokens in zip(sequences, pending, strict=True):
        sequence.prepare(tokens, draft.tokens)
    parts = [SequenceRows(s, 0, tokens) for s, tokens in zip(sequences[:2], pending, strict=False)]
    parts.append(SequenceRows(sequences[2], 0, pending[2], draft))
    batch = LongBatch(config(), lay_rows(config(), parts, 32, pool.spare_page), torch.device("cpu"))
    assert batch.tokens.tolist() == [*range(100), 5, *range(70), 7, 8, 9]
    assert batch.position.tolist() == [*range(100), 0, *range(72), 71]  # the last node is a second child
    assert batch.slot.tolist() == [*range(100), 0, *range(73)]
    assert batch.logit_rows.tolist() == [99, 100, 170, 171, 172, 173]
    assert batch.blocks is not None and batch.num_tiles == 2  # the decoding row, and the branch
    blocks = batch.blocks.fields.view(-1, 4).tolist()
    assert [block[2] for block in blocks] == sorted((block[2] for block in blocks), reverse=True)
    assert sum(block[1] for block in blocks) == 100 + 72
    pages = batch.pages.tolist()
    assert pages[: batch.blocks.num_pages] == [*sequences[0].pages, *sequences[2].pages]
    assert {block[3] for block in blocks} == {0, len(sequences[0].pages) * PAGE_SIZE}
    first_page = batch.page_from.tolist()
    assert pages[first_page[100] :] == sequences[1].pages


def test_a_room_is_filled_again_in_place() -> None:
    """Rows that are not used write to the spare page, and blocks that are not used have no rows."""
    pool = KVPool(config(), 2048, torch.float32, torch.device("cpu"))
    laid = []
    for counts in ((100, 70), (150,)):
        sequences = [pool.open([], count) for count in counts]
        for sequence, count in zip(sequences, counts, strict=True):
            sequence.prepare(list(range(count)), ())
        parts = [SequenceRows(s, 0, list(range(n))) for s, n in zip(sequences, counts, strict=True)]
        laid.append(lay_rows(config(), parts, 32, pool.spare_page))
    assert laid[0].room == laid[1].room == Room(192, 8)
    batch = LongBatch(config(), laid[0], torch.device("cpu"), laid[0].room)
    tokens, pages = batch.tokens, batch.pages
    for one, ends in zip(laid, ([99, 169], [149]), strict=True):
        batch.fill(one)
        used = len(one.tokens)
        assert batch.tokens is tokens and batch.pages is pages
        assert tokens.tolist() == [*one.tokens, *[0] * (192 - used)]
        assert {pages.tolist()[i] for i in batch.page_from.tolist()[used:]} == {pool.spare_page}
        assert batch.logit_rows.tolist()[: len(ends)] == ends
        assert batch.blocks is not None and batch.blocks.num_pages == 8
        assert sum(block[1] for block in batch.blocks.fields.view(-1, 4).tolist()) == used


def test_rows_in_tiles_have_no_room() -> None:
    pool = KVPool(config(), 2048, torch.float32, torch.device("cpu"))
    sequence = pool.open([], 100)
    sequence.prepare([5], ())
    assert lay_rows(config(), [SequenceRows(sequence, 0, [5])], 32, pool.spare_page).room is None
