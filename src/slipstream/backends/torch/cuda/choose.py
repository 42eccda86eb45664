"""The target's own token after each row, chosen on the device: greedy, or coupled to the noise of (seed, position).

The noise is that of `core.noise`: the same hash of the same numbers, in 64-bit floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from slipstream.core.noise import stream_keys
from slipstream.core.sampling import Sampling

_BLOCK = 4096  # logits of a program


@dataclass(frozen=True, slots=True)
class RowChoice:
    """How the token after one row is chosen."""

    sampling: Sampling
    position: int  # of that token in the answer


def can_choose(sampling: Sampling) -> bool:
    """Penalties and biases need the host: they look at the text so far."""
    return not sampling.changes_logits


def chooses_alone(samplings: Sequence[Sampling | None]) -> bool:
    """Whether the device can choose for all of these without the host."""
    return all(s is not None and not s.narrows and can_choose(s) for s in samplings)


@triton.jit
def chosen_by(logits, token, settings):
    """The values whose maximum is the chosen token, as float64: the logits; if `settings` has a temperature, divided by
    it and with the noise of its key."""
    value = logits.to(tl.float64)
    temperature = tl.load(settings).to(tl.float64, bitcast=True)
    if temperature > 0:
        key = tl.load(settings + 1).to(tl.uint64, bitcast=True)
        number = key + (token.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
        number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9
        number = (number ^ (number >> 27)) * 0x94D049BB133111EB
        number = (number ^ (number >> 31)) >> 32
        unit = (number.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2 ** -32
        value = value / temperature - tl.log(-tl.log(unit))
    return value


@triton.jit
def best_of_block_kernel(
    logits,  # [rows, vocab] float32
    settings,  # [rows, 2] int64: bits of the temperature as a float64, key of the noise
    values,  # [rows, blocks] float64
    tokens,  # [rows, blocks] int32
    sums,  # [rows, blocks, 3] float32: the chosen logit, the largest, sum of exp(logit - largest)
    ids,  # [vocab] int32: the token of each logit, if NAMED
    vocab,
    BLOCK: tl.constexpr,
    NAMED: tl.constexpr,
):
    row = tl.program_id(0)
    block = tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row.to(tl.int64) * vocab + place, mask=place < vocab, other=float("-inf"))
    token = tl.load(ids + place, mask=place < vocab, other=2147483646) if NAMED else place
    peak = tl.max(x, 0)
    at = row * tl.num_programs(1) + block
    if tl.load(settings + row * 2) == 0:  # greedy
        winner = tl.min(tl.where(x == peak, token, 2147483647), 0)
        tl.store(values + at, peak.to(tl.float64))
        tl.store(sums + at * 3, peak)
    else:
        value = chosen_by(x, token, settings + row * 2)
        best = tl.max(value, 0)
        winner = tl.min(tl.where(value == best, token, 2147483647), 0)
        tl.store(values + at, best)
        tl.store(sums + at * 3, tl.max(tl.where(token == winner, x, float("-inf")), 0))
    tl.store(tokens + at, winner)
    tl.store(sums + at * 3 + 1, peak)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    tl.store(sums + at * 3 + 2, tl.sum(tl.exp(x - safe), 0))


@triton.jit
def best_of_row_kernel(
    values,
    tokens,
    sums,
    chosen,  # [2, rows] int32: the token (-1: the logits are not finite), and the bits of its probability in float32
    num_blocks,
    rows,
    BLOCKS: tl.constexpr,
):
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    inside = block < num_blocks
    at = row * num_blocks + block
    value = tl.load(values + at, mask=inside, other=float("-inf"))
    token = tl.load(tokens + at, mask=inside, other=2147483647)
    best = tl.max(value, 0)
    winner = tl.min(tl.where(value == best, token, 2147483647), 0)
    peaks = tl.load(sums + at * 3 + 1, mask=inside, other=float("-inf"))
    peak = tl.max(peaks, 0)
    total = tl.sum(tl.load(sums + at * 3 + 2, mask=inside, other=0.0) * tl.exp(peaks - peak), 0)
    logit = tl.max(tl.where(token == winner, tl.load(sums + at * 3, mask=inside), float("-inf")), 0)
    tl.store(chosen + row, tl.where(total == total, winner, -1))
    tl.store(chosen + rows + row, (tl.exp(logit - peak) / total).to(tl.int32, bitcast=True))


class Chooser:
    """Chooses for up to `capacity` rows, from buffers that never move."""

    def __init__(self, capacity: int, vocab_size: int, device: torch.device, ids: torch.Tensor | None = None) -> None:
        """`ids` [vocab_size] int32: the token of each logit, if that is not its index."""
        self._ids = ids
        pinned = device.type == "cuda"
        self._num_blocks = triton.cdiv(vocab_size, _BLOCK)
        self._vocab_size = vocab_size
        self._settings_hosts = [torch.zeros(capacity, 2, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]
        self._is_greedy = True  # what the settings on the device say
        self.settings = torch.zeros(capacity, 2, dtype=torch.int64, device=device)
        self._values = torch.empty(capacity, self._num_blocks, dtype=torch.float64, device=device)
        self._tokens = torch.empty(capacity, self._num_blocks, dtype=torch.int32, device=device)
        self._sums = torch.empty(capacity, self._num_blocks, 3, device=device)
        self.chosen = torch.zeros(2, capacity, dtype=torch.int32, device=device)
        self._chosen_host = torch.zeros(2, capacity, dtype=torch.int32, pin_memory=pinned)

    def ask(self, rows: Sequence[RowChoice | None]) -> None:
        """How each row chooses; None: greedily."""
        is_greedy = all(asked is None or asked.sampling.is_greedy for asked in rows)
        if is_greedy and self._is_greedy:
            return
        self._settings_hosts.reverse()  # the other one may still be on its way
        host = self._settings_hosts[0].numpy()
        host[:] = 0
        if not is_greedy:
            asking = [row for row, asked in enumerate(rows) if asked is not None]
            host[asking] = settings_of([asked for asked in rows if asked is not None])
        self._is_greedy = is_greedy
        self.settings.copy_(self._settings_hosts[0], non_blocking=True)

    def settings_changed(self) -> None:
        """A kernel changed the settings on the device: the next `ask` sends them all."""
        self._is_greedy = False

    def choose(self, logits: torch.Tensor) -> None:
        """Into `chosen`, for each row of logits [rows, vocab] float32."""
        rows, ids = len(logits), self._ids
        best_of_block_kernel[(rows, self._num_blocks)](
            logits, self.settings, self._values, self._tokens, self._sums, self.chosen if ids is None else ids,
            self._vocab_size, BLOCK=_BLOCK, NAMED=ids is not None, num_warps=8,
        )  # fmt: skip
        best_of_row_kernel[(rows,)](
            self._values, self._tokens, self._sums, self.chosen, self._num_blocks, self.chosen.shape[1],
            BLOCKS=triton.next_power_of_2(self._num_blocks), num_warps=1,
        )  # fmt: skip

    def read(self, rows: int) -> list[int]:
        """The tokens of the first rows, on the host; -1 where the logits are not finite. Waits for the device."""
        self._chosen_host[0, :rows].copy_(self.chosen[0, :rows], non_blocking=True)
        if self.chosen.is_cuda:
            torch.cuda.current_stream().synchronize()
        tokens: list[int] = self._chosen_host[0, :rows].tolist()
        return tokens


def settings_of(rows: Sequence[RowChoice]) -> npt.NDArray[np.int64]:
    """[rows, 2] as the kernels read them. Greedy is a temperature of 0."""
    temperatures = np.array([row.sampling.temperature for row in rows], np.float64)
    seeds = np.array([row.sampling.seed for row in rows], np.uint64)
    keys = stream_keys(seeds, np.array([row.position for row in rows], np.uint64))
    return np.stack([temperatures.view(np.int64), keys.view(np.int64)], axis=1)


def narrowed(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Logits [rows, vocab] with -inf where top-k, top-p and min-p leave a token out, as `core.sampling` does."""
    z = logits.double() / sampling.temperature
    out = torch.zeros_like(z, dtype=torch.bool)
    if 0 < sampling.top_k < z.shape[1]:
        out |= z < z.topk(sampling.top_k).values[:, -1:]
    if sampling.top_p < 1:
        p, order = z.masked_fill(out, float("-inf")).softmax(-1).sort(stable=True, descending=True)
        before = p.cumsum(-1) - p  # probability of the likelier tokens together
        out |= torch.zeros_like(out).scatter(1, order, before >= sampling.top_p * (1 - 1e-12))
    if sampling.min_p > 0:
        out |= z < z.max(-1, keepdim=True).values + math.log(sampling.min_p)
    return logits.masked_fill(out, float("-inf"))
