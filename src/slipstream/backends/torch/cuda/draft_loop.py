"""DraftLoop: a draft model or a head generates several tokens by itself; the host gets them once, at the end.

Each step is one graph, and a small kernel that passes the chosen token to the next step. Tokens stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.batch import advance_rows
from slipstream.backends.torch.cuda.bucket import Bucket, captured_graph
from slipstream.backends.torch.cuda.choose import RowChoice, settings_of
from slipstream.backends.torch.cuda.kernels.linear import MAX_ROWS
from slipstream.core.protocols import ExtendRequest, Extension
from slipstream.core.sampling import Sampling

MAX_STEPS = 128
STEPS_OF_GRAPHS = (4, 2, 1)  # longer ones take longer to capture and save little


@triton.jit(do_not_specialize=("capacity",))
def hand_on_kernel(
    chosen,  # [2, capacity] int32, of the step that ended
    capacity,
    source,  # [streams] int32: which of its rows is the stream's
    progress,  # [2] int32: steps taken, streams
    plan,  # [MAX_STEPS + 1, MAX, 2] int64: how each step chooses
    drafted,  # [MAX_STEPS, 2, MAX] int32
    tokens,  # of the next step, as are the four after this
    position,
    slot,
    tiles,
    settings,
    MAX: tl.constexpr,
    ADVANCE: tl.constexpr,  # the next step has the same rows, one position on; otherwise it is laid out already
):
    i = tl.arange(0, MAX)
    step = tl.load(progress)
    inside = i < tl.load(progress + 1)
    row = tl.load(source + i, mask=inside, other=0)
    token = tl.load(chosen + row, mask=inside, other=0)
    tl.store(drafted + step * 2 * MAX + i, token, mask=inside)
    tl.store(drafted + (step * 2 + 1) * MAX + i, tl.load(chosen + capacity + row, mask=inside, other=0), mask=inside)
    tl.store(tokens + i, tl.maximum(token, 0), mask=inside)  # -1 (no finite logits) is not in the embedding
    if ADVANCE:
        advance_rows(position, slot, tiles, i, inside)
    for part in tl.static_range(2):
        setting = tl.load(plan + ((step + 1) * MAX + i) * 2 + part, mask=inside)
        tl.store(settings + i * 2 + part, setting, mask=inside)
    tl.debug_barrier()
    tl.store(progress, step + 1)


Ready = Callable[[Any, Sequence[SequenceRows]], None]  # prepares the first forward of these rows, in its bucket


class DraftLoop:
    def __init__(
        self, bucket: Callable[[int], Bucket], device: torch.device, ready: Ready = lambda bucket, parts: None,
        max_streams: int = MAX_ROWS,
    ) -> None:  # fmt: skip
        """`max_streams`: the most rows of a bucket."""
        self._ready = ready
        self._max_streams = max_streams
        pinned = device.type == "cuda"
        self._bucket = bucket
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}  # by capacity and steps
        self.plan = torch.zeros(MAX_STEPS + 1, max_streams, 2, dtype=torch.int64, device=device)
        self._plan_host = torch.zeros(MAX_STEPS + 1, max_streams, 2, dtype=torch.int64, pin_memory=pinned)
        self._is_greedy = True  # what the plan on the device says
        self._in_place = torch.arange(max_streams, dtype=torch.int32, device=device)
        self.drafted = torch.zeros(MAX_STEPS, 2, max_streams, dtype=torch.int32, device=device)
        self._drafted_host = torch.zeros(MAX_STEPS, 2, max_streams, dtype=torch.int32, pin_memory=pinned)
        self._tokens, self._chances = self._drafted_host[:, 0].numpy(), self._drafted_host[:, 1].numpy()

    def warm_up(self) -> None:
        """Captures the steps of a single stream, and compiles what comes before them."""
        bucket = self._bucket(1)
        for count in STEPS_OF_GRAPHS:
            self._graph(bucket, count)
        bucket.batch.fill([])
        self._hand_on(bucket, bucket, self._in_place, advance=False)

    def run(self, requests: Sequence[ExtendRequest], parts: Sequence[SequenceRows]) -> list[Extension]:
        """Drafts for as many streams at a time as a graph has rows for. Their sequences have room for all steps."""
        extensions: list[Extension] = []
        while len(extensions) < len(requests):
            start = len(extensions)
            rows = accumulate(part.num_rows for part in parts[start:])
            count = max(1, sum(total <= self._max_streams for total in rows))
            extensions += self._run(requests[start : start + count], parts[start : start + count])
        return extensions

    def _run(self, requests: Sequence[ExtendRequest], parts: Sequence[SequenceRows]) -> list[Extension]:
        """All streams run as many steps as the longest request."""
        steps, streams = min(MAX_STEPS, max(request.steps for request in requests)), len(requests)
        ends = list(accumulate(part.num_rows for part in parts))
        self._send_plan(requests, steps)
        first, then = self._bucket(ends[-1]), self._bucket(streams)
        in_place = ends[-1] == streams  # one row each: the first step is like those that follow
        first.batch.fill(parts, ahead=steps if in_place else 0)
        self._ready(first, parts)
        asked: list[RowChoice | None] = [None] * ends[-1]
        for request, end in zip(requests, ends, strict=True):
            asked[end - 1] = RowChoice(request.sampling, request.position)
        first.chooser.ask(asked)
        left = steps
        if not in_place:
            first.run()
            first.narrow([(r.sampling, slice(end - 1, end)) for r, end in zip(requests, ends, strict=True)])
            following = [SequenceRows(p.sequence, p.start + len(p.pending), [0]) for p in parts]
            then.batch.fill(following, ahead=steps, source=[end - 1 for end in ends])
            self._begin(first, then)
            left -= 1
        self._go_on(then, left, [(r.sampling, slice(i, i + 1)) for i, r in enumerate(requests) if r.sampling.narrows])
        if not self._is_greedy:
            then.chooser.settings_changed()
        return self._read(requests, steps)

    def follow(self, first: Bucket, then: Bucket, steps: int) -> None:
        """Takes `steps` steps, the first of which is the forward `first`, already started. The others are laid out, and
        `plan` says how they choose. The tokens are in `drafted` afterwards.
        """
        self._begin(first, then)
        self._go_on(then, steps - 1)

    def _begin(self, first: Bucket, then: Bucket) -> None:
        then.take_over(first, then.batch.source)
        self._hand_on(first, then, then.batch.source, advance=False)

    def _go_on(self, bucket: Bucket, steps: int, narrow: Sequence[tuple[Sampling, slice]] = ()) -> None:
        """Takes `steps` steps in place: with as few graphs as possible, or one by one if choices narrow or a larger
        graph is captured.
        """
        if not bucket.is_captured or narrow or torch.cuda.is_current_stream_capturing():
            for _ in range(steps):
                bucket.run()
                bucket.narrow(narrow)
                self._hand_on(bucket, bucket, self._in_place, advance=True)
            return
        while steps:
            count = next(count for count in STEPS_OF_GRAPHS if count <= steps)
            self._graph(bucket, count).replay()
            steps -= count

    def _graph(self, bucket: Bucket, count: int) -> torch.cuda.CUDAGraph:
        key = (bucket.batch.capacity, count)
        if key not in self._graphs:
            progress = bucket.batch.progress.clone()
            bucket.batch.progress.zero_()  # no streams: this only compiles the kernel
            self._hand_on(bucket, bucket, self._in_place, advance=True)
            bucket.batch.progress.copy_(progress)
            with captured_graph() as self._graphs[key]:
                for _ in range(count):
                    bucket.run()
                    self._hand_on(bucket, bucket, self._in_place, advance=True)
        return self._graphs[key]

    def _send_plan(self, requests: Sequence[ExtendRequest], steps: int) -> None:
        is_greedy = all(request.sampling.is_greedy for request in requests)
        if is_greedy and self._is_greedy:
            return
        end = len(self.plan) if is_greedy else steps + 1  # a longer greedy draft sends nothing
        plan = self._plan_host.numpy()[:end]
        plan[:] = 0
        choices = [RowChoice(r.sampling, r.position + step) for step in range(steps) for r in requests]
        plan[:steps, : len(requests)] = settings_of(choices).reshape(steps, len(requests), 2)
        self._is_greedy = is_greedy
        self.plan[:end].copy_(self._plan_host[:end], non_blocking=True)

    def _hand_on(self, before: Bucket, after: Bucket, source: torch.Tensor, advance: bool) -> None:
        batch, chooser = after.batch, after.chooser
        hand_on_kernel[(1,)](
            before.chooser.chosen, before.batch.capacity, source, batch.progress, self.plan, self.drafted,
            batch.tokens, batch.position, batch.slot, batch.tiles, chooser.settings,
            MAX=self._max_streams, ADVANCE=advance, num_warps=2,
        )  # fmt: skip

    def _read(self, requests: Sequence[ExtendRequest], steps: int) -> list[Extension]:
        """The one copy to the host. Waits for the device."""
        self._drafted_host[:steps].copy_(self.drafted[:steps], non_blocking=True)
        if self.drafted.is_cuda:
            torch.cuda.current_stream().synchronize()
        tokens = self._tokens[:steps, : len(requests)].T.tolist()
        chances = self._chances[:steps, : len(requests)].view(np.float32).T.tolist()
        return [Extension(t[: r.steps], c[: r.steps]) for r, t, c in zip(requests, tokens, chances, strict=True)]
