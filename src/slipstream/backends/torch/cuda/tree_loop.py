"""TreeLoop: a head grows a tree by itself; the host gets it once, at the end.

A level is part of a graph: the head reads the likeliest nodes of a depth, `width` of them, and the likeliest tokens
of each are the candidates of the next depth. Which of them are read next, by the probability of the whole path, is
chosen on the device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.batch import MAX_LEVELS, TILE_POSITION, TILE_SIZE
from slipstream.backends.torch.cuda.bucket import Bucket, captured_graph
from slipstream.backends.torch.cuda.choose import RowChoice, chosen_by, settings_of
from slipstream.core.protocols import ExtendRequest, Extension
from slipstream.core.tree import ROOT

_BLOCK = 2048  # logits of a program
_LEVELS_OF_GRAPHS = (4, 2, 1)
_NONE = tl.constexpr(2147483647)


@triton.jit
def few_best_kernel(
    logits,  # [rows, vocab] float32
    ids,  # [vocab] int32: the token of each logit
    plan,  # [MAX_LEVELS, 2] int64: how each level chooses, as `chosen_by` wants it
    progress,  # [1] int32: the level
    values,  # [rows, blocks, WIDTH] float64: the largest of a block
    tokens,  # [rows, blocks, WIDTH] int32
    sums,  # [rows, blocks, 2] float64: the largest, and the sum of exp(value - largest)
    vocab,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    block = tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row.to(tl.int64) * vocab + place, mask=place < vocab, other=float("-inf"))
    token = tl.load(ids + place, mask=place < vocab, other=0)
    value = chosen_by(x, token, plan + tl.load(progress) * 2)
    peak = tl.max(value, 0)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    at = row * tl.num_programs(1) + block
    tl.store(sums + at * 2, peak)
    tl.store(sums + at * 2 + 1, tl.sum(tl.exp((value - safe).to(tl.float32)), 0).to(tl.float64))
    for k in tl.static_range(WIDTH):
        best = tl.max(value, 0)
        first = tl.min(tl.where(value == best, place, _NONE), 0)
        tl.store(values + at * WIDTH + k, best)
        tl.store(tokens + at * WIDTH + k, tl.sum(tl.where(place == first, token, 0), 0))
        value = tl.where(place == first, float("-inf"), value)


@triton.jit
def grow_kernel(
    values,
    tokens,
    sums,
    num_blocks,
    paths,  # [WIDTH] float32: log of the probability of the path to each row
    joint,  # [WIDTH * WIDTH] float32, scratch
    found,  # [MAX_LEVELS, 2, WIDTH * WIDTH] int32: candidates of each level, row by row: tokens, bits of probabilities
    picked,  # [MAX_LEVELS, WIDTH] int32: which of them the next level reads; -1 for none
    before,  # [WIDTH] int64: the row of this level that each row of the next follows
    progress,
    batch_tokens,  # of the next level, as are the four after this
    position,
    slot,
    tiles,
    tail,  # [WIDTH, LEVELS] int32
    ROWS: tl.constexpr,  # of this level: 1 for the text itself
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
    R: tl.constexpr,  # WIDTH as a power of two
    B: tl.constexpr,  # blocks
    C: tl.constexpr,  # blocks * WIDTH
    N: tl.constexpr,  # WIDTH * WIDTH
):
    level = tl.load(progress)
    r = tl.arange(0, R)
    b = tl.arange(0, B)
    c = tl.arange(0, C)
    in_rows = r < ROWS
    inside = in_rows[:, None] & (c < num_blocks * WIDTH)[None, :]
    at = r[:, None] * (num_blocks * WIDTH) + c[None, :]
    value = tl.load(values + at, mask=inside, other=float("-inf"))
    token = tl.load(tokens + at, mask=inside, other=0)
    in_blocks = in_rows[:, None] & (b < num_blocks)[None, :]
    of_block = sums + (r[:, None] * num_blocks + b[None, :]) * 2
    peaks = tl.load(of_block, mask=in_blocks, other=float("-inf"))
    peak = tl.max(peaks, 1)
    parts = tl.load(of_block + 1, mask=in_blocks, other=0.0) * tl.exp(peaks - peak[:, None])
    whole = peak + tl.log(tl.sum(tl.where(in_blocks, parts, 0.0), 1))
    path = tl.load(paths + r, mask=in_rows, other=0.0) if ROWS > 1 else tl.zeros([R], tl.float32)
    out = found + level * (2 * WIDTH * WIDTH)
    for k in tl.static_range(WIDTH):
        best = tl.max(value, 1)
        first = tl.min(tl.where(value == best[:, None], c[None, :], _NONE), 1)
        is_first = c[None, :] == first[:, None]
        chance = (best - whole).to(tl.float32)
        is_number = chance == chance
        winner = tl.where(is_number, tl.sum(tl.where(is_first, token, 0), 1), -1)
        tl.store(out + r * WIDTH + k, winner, mask=in_rows)
        tl.store(out + WIDTH * WIDTH + r * WIDTH + k, tl.exp(chance).to(tl.int32, bitcast=True), mask=in_rows)
        tl.store(joint + r * WIDTH + k, tl.where(is_number, path + chance, float("-inf")), mask=in_rows)
        value = tl.where(is_first, float("-inf"), value)
    tl.debug_barrier()

    n = tl.arange(0, N)
    in_found = n < ROWS * WIDTH
    left = tl.load(joint + n, mask=in_found, other=float("-inf"))
    found_tokens = tl.load(out + n, mask=in_found, other=0)
    choice = tl.full([R], -1, tl.int32)
    chosen_token = tl.zeros([R], tl.int32)
    chosen_path = tl.full([R], float("-inf"), tl.float32)
    for k in tl.static_range(WIDTH):
        best = tl.max(left, 0)
        first = tl.min(tl.where(left == best, n, _NONE), 0)
        choice = tl.where(r == k, tl.where(best > float("-inf"), first, -1), choice)
        chosen_token = tl.where(r == k, tl.sum(tl.where(n == first, found_tokens, 0), 0), chosen_token)
        chosen_path = tl.where(r == k, best, chosen_path)
        left = tl.where(n == first, float("-inf"), left)
    in_width = r < WIDTH
    parent = tl.maximum(choice, 0) // WIDTH
    tl.store(picked + level * WIDTH + r, choice, mask=in_width)
    tl.store(before + r, parent.to(tl.int64), mask=in_width)
    tl.store(paths + r, chosen_path, mask=in_width)
    tl.store(batch_tokens + r, tl.maximum(chosen_token, 0), mask=in_width)
    if ROWS > 1:  # the first nodes were laid out by the host
        own_slot = tl.load(slot + r, mask=in_width, other=0) + WIDTH
        tile_position = tiles + r * TILE_SIZE + TILE_POSITION
        own_position = tl.load(position + r, mask=in_width, other=0) + 1
        d = tl.arange(0, LEVELS)
        branch = tl.load(tail + parent[:, None] * LEVELS + d[None, :], mask=in_width[:, None], other=0)
        tl.debug_barrier()
        branch = tl.where(d[None, :] == level, own_slot[:, None], branch)
        tl.store(tail + r[:, None] * LEVELS + d[None, :], branch, mask=in_width[:, None])
        tl.store(slot + r, own_slot, mask=in_width)
        tl.store(position + r, own_position, mask=in_width)
        tl.store(tile_position, own_position, mask=in_width)
    tl.debug_barrier()
    tl.store(progress, level + 1)


class TreeLoop:
    """Trees of one width. `level`: a step of the head for as many rows."""

    def __init__(self, level: Bucket, ids: torch.Tensor) -> None:
        device, width = ids.device, level.batch.capacity
        self._level = level
        self._ids = ids
        self._width = width
        self._num_blocks = triton.cdiv(len(ids), _BLOCK)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by levels
        self._values = torch.empty(width, self._num_blocks, width, dtype=torch.float64, device=device)
        self._tokens = torch.empty(width, self._num_blocks, width, dtype=torch.int32, device=device)
        self._sums = torch.empty(width, self._num_blocks, 2, dtype=torch.float64, device=device)
        self._paths = torch.zeros(width, device=device)
        self._joint = torch.zeros(width * width, device=device)
        self._before = torch.zeros(width, dtype=torch.int64, device=device)
        sizes = (MAX_LEVELS * 2 * width * width, MAX_LEVELS * width)
        self._result = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._found, self._picked = self._result.split(sizes)
        pinned = device.type == "cuda"
        self._result_host = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=pinned)
        self._plan = torch.zeros(MAX_LEVELS, 2, dtype=torch.int64, device=device)
        self._plan_host = torch.zeros(MAX_LEVELS, 2, dtype=torch.int64, pin_memory=pinned)
        self._is_greedy = True  # what the plan on the device says

    def warm_up(self, first: Bucket) -> None:
        """Captures the graphs, and compiles what comes before them. `first`: of one row."""
        self._level.batch.fill([])
        self._start(first, 0)
        self._go_on(1)
        for count in _LEVELS_OF_GRAPHS:
            with captured_graph() as self._graphs[count]:
                self._go_on(count)

    def run(self, request: ExtendRequest, part: SequenceRows, first: Bucket) -> Extension:
        """`first` has just read the text; the sequence has room for all nodes."""
        levels = min(request.steps, MAX_LEVELS)
        self._send_plan(request, levels)
        self._level.batch.fill_level(part.sequence, levels)
        self._start(first, part.num_rows - 1)
        left = levels - 1
        while left:
            count = next(count for count in _LEVELS_OF_GRAPHS if count <= left)
            if self._graphs:
                self._graphs[count].replay()
            else:
                self._go_on(count)  # Triton's interpreter has no graphs
            left -= count
        return self._read(levels)

    def _start(self, first: Bucket, row: int) -> None:
        """Finds the candidates after the text itself. `row`: its last one in the first forward."""
        self._level.take_over(first, torch.full((self._width,), row, device=self._ids.device))
        self._grow(first.logits[row : row + 1])

    def _go_on(self, levels: int) -> None:
        for _ in range(levels):
            self._grow(self._level.forward())
            self._level.take_over(self._level, self._before)

    def _send_plan(self, request: ExtendRequest, levels: int) -> None:
        if request.sampling.is_greedy and self._is_greedy:
            return
        plan = self._plan_host.numpy()
        plan[:] = 0  # a deeper greedy draft sends nothing
        plan[:levels] = settings_of([RowChoice(request.sampling, request.position + i) for i in range(levels)])
        self._is_greedy = request.sampling.is_greedy
        self._plan.copy_(self._plan_host, non_blocking=True)

    def _grow(self, logits: torch.Tensor) -> None:
        rows, width, batch = len(logits), self._width, self._level.batch
        few_best_kernel[(rows, self._num_blocks)](
            logits, self._ids, self._plan, batch.progress, self._values, self._tokens, self._sums, logits.shape[1],
            WIDTH=width, BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
        grow_kernel[(1,)](
            self._values, self._tokens, self._sums, self._num_blocks, self._paths, self._joint, self._found,
            self._picked, self._before, batch.progress, batch.tokens, batch.position, batch.slot, batch.tiles,
            batch.tail, ROWS=rows, WIDTH=width, LEVELS=MAX_LEVELS, R=triton.next_power_of_2(width),
            B=triton.next_power_of_2(self._num_blocks), C=triton.next_power_of_2(self._num_blocks * width),
            N=triton.next_power_of_2(width * width), num_warps=8,
        )  # fmt: skip

    def _read(self, levels: int) -> Extension:
        """The one copy to the host. Waits for the device."""
        self._result_host.copy_(self._result, non_blocking=True)
        if self._result.is_cuda:
            torch.cuda.current_stream().synchronize()
        result, width = self._result_host.numpy(), self._width
        cut = len(self._found)
        found = result[:cut].reshape(MAX_LEVELS, 2, width * width)[:levels]
        return _assembled(found, result[cut:].reshape(MAX_LEVELS, width))


def _assembled(found: npt.NDArray[np.int32], picked: npt.NDArray[np.int32]) -> Extension:
    """The nodes of all levels, parents first. A row of a level follows the candidate that was picked for it."""
    width = picked.shape[1]
    tokens: list[int] = []
    chances: list[float] = []
    parents: list[int] = []
    before = [ROOT]  # the node of each row
    for (level_tokens, bits), choice in zip(found.tolist(), picked.tolist(), strict=False):
        level_chances = np.array(bits, np.int32).view(np.float32).tolist()
        place = [-2] * len(level_tokens)
        for i, parent in enumerate(parent for parent in before for _ in range(width)):
            if parent >= ROOT and level_tokens[i] >= 0 and level_chances[i] > 0:
                place[i] = len(tokens)
                tokens.append(level_tokens[i])
                chances.append(level_chances[i])
                parents.append(parent)
        before = [place[i] if i >= 0 else -2 for i in choice]
    return Extension(tokens, chances, parents)
