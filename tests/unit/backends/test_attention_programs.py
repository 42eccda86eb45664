"""Attention of a tile by one program and by several: the same bits. In Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton")

from slipstream.backends.torch.cuda.batch import _MANY_TILES, SPLIT, TILE_FIELDS, TILE_PROGRAMS, Tiles, num_programs
from slipstream.backends.torch.cuda.kernels.attention import attend_kernel

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the same kernels on the GPU")
HEADS, KV_HEADS, D, PAGE = 4, 2, 16, 32
POSITIONS = (0, 126, 128, 383, 600)  # of the first row of each tile
ROWS = (1, 3, 1, 2, 1)
PAGES_A_TILE = 25
BRANCH = (598, 602, 601)  # slots of the last tile's tokens, from position 598 on


@dataclass
class Cache:
    keys: torch.Tensor  # [cells, kv_heads, D]
    values: torch.Tensor
    pages: torch.Tensor

    def cells(self, tile: int, position: int, window: int) -> torch.Tensor:
        """What a row sees."""
        place = torch.arange(position + 1)
        if tile == len(POSITIONS) - 1:
            place[BRANCH[0] :] = torch.tensor(BRANCH)
        place = place[max(0, position - window + 1) :] if window else place
        return self.pages[tile * PAGES_A_TILE + place // PAGE].long() * PAGE + place % PAGE


@pytest.fixture(scope="module")
def cache() -> Cache:
    random = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(4096, KV_HEADS, D, generator=random) for _ in range(2))
    return Cache(keys, values, torch.randperm(4096 // PAGE, generator=random).int())


def tiles(chunk: int, programs: int) -> torch.Tensor:
    laid: list[int] = []
    row = scratch = 0
    for i, (position, rows) in enumerate(zip(POSITIONS, ROWS, strict=True)):
        base = BRANCH[0] if i == len(POSITIONS) - 1 else 1 << 30
        laid += [row, rows, position, base, 0, chunk, scratch, i * PAGES_A_TILE, programs]
        row += rows
        scratch += ((position + rows - 1) // chunk + 1) * rows
    return torch.tensor(laid, dtype=torch.int32)


def attended(queries: torch.Tensor, cache: Cache, laid: torch.Tensor, window: int) -> torch.Tensor:
    out = torch.full((len(queries), HEADS * D), float("nan"))
    arrived = torch.zeros(64, dtype=torch.int32)
    shares = laid[TILE_PROGRAMS.value :: len(TILE_FIELDS)].tolist()
    programs = [tile + i * SPLIT.value for tile, share in enumerate(shares) for i in range(share)]
    attend_kernel[(KV_HEADS, len(programs) + 1)](
        queries, cache.keys, cache.values, out, laid, torch.tensor([-1, *programs], dtype=torch.int32),
        torch.tensor(BRANCH, dtype=torch.int32), cache.pages,
        torch.empty(1 << 14), torch.empty(1 << 11), arrived, queries.shape[1], D**-0.5, HEADS=HEADS,
        KV_HEADS=KV_HEADS, GROUP=HEADS // KV_HEADS, D=D, WIDTH=D, CODED=False, BLOCK_D=D, BLOCK_M=16, BLOCK_KEYS=128,
        PAGE=PAGE, WINDOW=window, PRECISION="ieee", EARLY=False,
    )  # fmt: skip
    assert not arrived.any()
    return out


@pytest.mark.parametrize(("chunk", "window"), [(128, 0), (128, 150), (256, 0)])
def test_a_tile_has_the_same_bits_by_one_program_and_by_several(cache: Cache, chunk: int, window: int) -> None:
    queries = torch.randn(sum(ROWS), (HEADS + 2 * KV_HEADS) * D, generator=torch.Generator().manual_seed(1))
    alone, *shared = (attended(queries, cache, tiles(chunk, n), window) for n in (1, 2, 4, 9))
    assert all(torch.equal(alone, out) for out in shared)
    places = [(i, position + j) for i, position in enumerate(POSITIONS) for j in range(ROWS[i])]
    for row, (tile, position) in enumerate(places):
        cells = cache.cells(tile, position, window)
        for head in range(HEADS):
            of_head = slice(head * D, (head + 1) * D)
            keys, values = cache.keys[cells, head // 2], cache.values[cells, head // 2]
            weights = torch.softmax(keys @ queries[row, of_head] * D**-0.5, 0)
            torch.testing.assert_close(alone[row, of_head], weights @ values)


def programs_of(positions: list[int]) -> list[int]:
    laid_out = Tiles()
    for row, position in enumerate(positions):
        laid_out.add_chain(row, position, 1, 0, 4)
    tiles, programs = laid_out.laid_out(1 << 20, num_programs(len(positions)))
    shares = tiles[TILE_PROGRAMS.value :: len(TILE_FIELDS)]
    assert programs == [tile + i * SPLIT.value for tile, share in enumerate(shares) for i in range(share)]
    assert len(programs) <= num_programs(len(positions))
    return shares


def test_few_tiles_have_a_program_for_each_chunk() -> None:
    assert programs_of([300] * 8) == [3] * 8
    assert programs_of([16_000]) == [32]
    assert min(programs_of([8_000] * 8)) > 4


def test_many_tiles_have_a_program_each_and_long_texts_more() -> None:
    assert programs_of([300] * _MANY_TILES) == [1] * _MANY_TILES
    among_short = programs_of([300] * 63 + [16_000])
    assert among_short[:-1] == [1] * 63 and among_short[-1] >= 4
