"""RunAhead: plain decoding that never waits for the host.

If the next request is known to be the token just chosen, its forward pass starts before the host has seen that token:
the host works on one step while the device runs the next. If the guess is wrong (the stream ended), a forward pass is
wasted and nothing else changes: it wrote after the end of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from slipstream.backends.torch.batch import SequenceRows, note_features
from slipstream.backends.torch.cuda.batch import advance_rows, chunk_keys
from slipstream.backends.torch.cuda.bucket import TargetBucket
from slipstream.backends.torch.cuda.choose import RowChoice, chooses_alone
from slipstream.backends.torch.cuda.host_copies import HostCopies
from slipstream.backends.torch.kv_pool import PAGE_SIZE, PooledSequence
from slipstream.core.protocols import ScoreRequest
from slipstream.core.sampling import Sampling
from slipstream.errors import CapacityError

AHEAD = 64  # tokens a stream may go on for before its pages are sent again


@triton.jit
def follow_kernel(chosen, tokens, position, slot, tiles, streams, CAPACITY: tl.constexpr):
    """The next step of each stream: the chosen token, one position on."""
    i = tl.arange(0, CAPACITY)
    inside = i < streams
    token = tl.maximum(tl.load(chosen + i, mask=inside, other=0), 0)  # -1 (no finite logits) is not in the embedding
    tl.store(tokens + i, token, mask=inside)
    advance_rows(position, slot, tiles, i, inside)


@dataclass(slots=True)
class _UnderWay:
    """A forward pass that was started before it was requested."""

    bucket: TargetBucket
    rows: _KnownRows
    steps: int  # since the batch was laid out
    features: torch.Tensor | None  # [rows, features] for a head


@dataclass(slots=True)
class _KnownRows:
    """One row each of some sequences. Lists of plain values, since they are compared in every round."""

    sequences: list[PooledSequence]
    starts: list[int]
    tokens: list[int]
    page_versions: list[int]


class RunAhead:
    def __init__(self, context_length: int, max_streams: int, device: torch.device) -> None:
        self._context_length = context_length
        self._under_way: _UnderWay | None = None
        self._in_graph: list[Sampling | None] = []  # for which the device alone can choose
        self._chosen = HostCopies((max_streams,), device)

    def warm_up(self, bucket: TargetBucket) -> None:
        self._follow(bucket, 0)

    def forget(self) -> None:
        self._under_way = None

    @property
    def is_under_way(self) -> bool:
        return self._under_way is not None

    def score(
        self, bucket: TargetBucket, requests: Sequence[ScoreRequest], parts: Sequence[SequenceRows]
    ) -> list[int] | None:
        """The chosen token of each row, if its step is under way already, or the device can go on after it; else None.

        Starts the next step before it waits for this one.
        """
        steps = self._steps_taken(bucket, parts)
        continues = all(request.next_draft == 0 for request in requests) and self._choose_in_graph(requests)
        if steps is None:
            if not continues:
                return None
            for part in parts:
                make_room(part, self._context_length)
            bucket.batch.fill(parts, ahead=AHEAD)
            bucket.chooser.ask(_asked(requests, 0))
            bucket.run()
            steps, features = 0, bucket.features(parts)
        else:
            features = self._under_way.features if self._under_way else None
        chosen = self._chosen.begin(bucket.chooser.chosen[0, : len(parts)])
        goes_on = continues and steps + 1 < AHEAD and all(has_room(part, 2, self._context_length) for part in parts)
        if goes_on:
            self._follow(bucket, len(parts))
            bucket.chooser.ask(_asked(requests, 1))
            bucket.run()
        ahead = bucket.features(parts) if goes_on else None
        tokens: list[int] = chosen.wait().tolist()
        self._under_way = None
        note_features(parts, features)
        if goes_on:
            sequences = [part.sequence for part in parts]
            versions = [sequence.pages_version for sequence in sequences]
            following = _KnownRows(sequences, [part.start + 1 for part in parts], tokens, versions)
            self._under_way = _UnderWay(bucket, following, steps + 1, ahead)
        return tokens

    def _steps_taken(self, bucket: TargetBucket, parts: Sequence[SequenceRows]) -> int | None:
        """Steps since the layout, if the step under way is the one that is requested; else None."""
        now = self._under_way
        if now is None or now.bucket is not bucket:
            return None
        sequences = [part.sequence for part in parts]
        starts, tokens = [part.start for part in parts], [part.pending[0] for part in parts]
        asked = _KnownRows(sequences, starts, tokens, [sequence.pages_version for sequence in sequences])
        return now.steps if asked == now.rows else None

    def _choose_in_graph(self, requests: Sequence[ScoreRequest]) -> bool:
        """Whether the device alone can choose for all of them."""
        samplings = [request.sampling for request in requests]
        if samplings != self._in_graph:  # mostly the same as in the round before
            if not chooses_alone(samplings):
                return False
            self._in_graph = samplings
        return True

    def _follow(self, bucket: TargetBucket, streams: int) -> None:
        batch = bucket.batch
        follow_kernel[(1,)](
            bucket.chooser.chosen, batch.tokens, batch.position, batch.slot, batch.tiles, streams,
            CAPACITY=triton.next_power_of_2(batch.capacity), num_warps=1,
        )  # fmt: skip


def make_room(part: SequenceRows, context_length: int) -> None:
    """Takes pages for the steps to come; if there are too few, for this step alone."""
    try:
        part.sequence.make_room(min(AHEAD, context_length - part.start))
    except CapacityError:
        part.sequence.make_room(part.num_rows)


def has_room(part: SequenceRows, count: int, context_length: int) -> bool:
    """Whether the device can go on for `count` tokens from this part's first one: the pages that it knows have room,
    and chunks keep their length, which depends on the position and which the device can't change.
    """
    end = part.start + count
    in_pages = end <= min(len(part.sequence.pages) * PAGE_SIZE, context_length)
    return in_pages and chunk_keys(end - 1) == chunk_keys(part.start)


def _asked(requests: Sequence[ScoreRequest], steps: int) -> list[RowChoice | None]:
    """How the rows choose `steps` steps later; empty if all are greedy."""
    if all(request.sampling is None or request.sampling.is_greedy for request in requests):
        return []
    return [RowChoice(r.sampling, r.position + steps) if r.sampling else None for r in requests]
