"""HeadRounds: rounds with a head that never wait for the host.

Draft, forward pass, acceptance and the next draft run one after the other on the device; the host reads the tokens one
round later. How long a draft is, the host says one round ahead. The device assumes that the next round has the same
streams. If the host asks for something else, that round is discarded: it only wrote to cache cells after the end of the
text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
import triton
import triton.language as tl

from slipstream.backends.torch.batch import SequenceRows, note_features
from slipstream.backends.torch.cuda.batch import TILE_POSITION, TILE_ROW, TILE_SIZE
from slipstream.backends.torch.cuda.bucket import TargetBucket, captured_graph
from slipstream.backends.torch.cuda.choose import RowChoice, chooses_alone, settings_of
from slipstream.backends.torch.cuda.draft_loop import DraftLoop
from slipstream.backends.torch.cuda.head_bucket import HeadBucket
from slipstream.backends.torch.cuda.host_copies import Copied, HostCopies
from slipstream.backends.torch.cuda.kernels.linear import MAX_SKINNY_ROWS
from slipstream.backends.torch.cuda.run_ahead import AHEAD, has_room, make_room
from slipstream.backends.torch.kv_pool import PooledSequence
from slipstream.core.protocols import ExtendRequest, Extension, ScoreRequest
from slipstream.core.sampling import Sampling

_MAX_ROWS = 32  # of a stream: its next token and the draft
_MAX_TILES = 64  # of a batch, and rows
_CAPTURED = range(2, 10)  # rows of a stream alone for which there are graphs
_TABLE = AHEAD + 2 * _MAX_ROWS  # tokens that may be chosen before the layout is sent again
_SIZES = ("num_tiles", "num_read_tiles", "per_stream", "next_per_stream")
_BUFFERS = (
    "chosen", "tokens", "position", "next_tokens", "next_position", "slot", "tiles", "read_tokens", "read_position",
    "read_slot", "read_tiles", "step_position", "step_slot", "step_tiles", "source", "progress", "table", "at",
    "settings", "read_settings", "plan",
)  # fmt: skip


@triton.jit
def move_tiles(tiles, num_tiles, position, stream, per_stream, TILES: tl.constexpr):
    """Puts the tiles of a stream where its rows are now: the first of them at `position`."""
    i = tl.arange(0, TILES)
    at = tiles + i * TILE_SIZE
    row = tl.load(at + TILE_ROW, mask=i < num_tiles, other=-1)
    is_own = (row >= stream * per_stream) & (row < (stream + 1) * per_stream)
    tl.store(at + TILE_POSITION, position + row - stream * per_stream, mask=is_own)


@triton.jit
def copy_settings(to, entries, first, per_stream, ROWS: tl.constexpr):
    """How the tokens after a stream's rows are chosen: as the table has it from its entry `first` on."""
    j = tl.arange(0, ROWS)
    for part in tl.static_range(2):
        entry = tl.load(entries + (first + j) * 2 + part, mask=j < per_stream)
        tl.store(to + j * 2 + part, entry, mask=j < per_stream)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_BUFFERS)
def accept_kernel(
    chosen,  # [rows] int32, the target's own tokens; a stream has `per_stream` rows: its last token, and the draft
    tokens,  # [rows] int32 that the target has read
    position,  # [rows] int32, in the text
    next_tokens,  # [rows] int32, the first of each stream becomes what the target reads next. May be `tokens`
    next_position,  # [rows] int32, of these rows, as the next two. May be `position`
    slot,
    tiles,
    read_tokens,  # [rows] int32 that the head reads: each token that the target chose, with the features before it
    read_position,
    read_slot,
    read_tiles,
    step_position,  # [streams] int32, of the steps of the draft after that
    step_slot,
    step_tiles,
    source,  # [streams] int32: the head's row that the draft begins with, that of the last accepted token
    progress,  # [2] int32: steps of the draft, streams
    table,  # [streams, TABLE, 2] int64: how tokens are chosen, by their number since it was sent
    at,  # [streams] int32: the number of the token after a stream's first row
    settings,  # [rows, 2] int64: how the target chooses next
    read_settings,  # [rows, 2] int64: how the head does
    plan,  # [steps, MAX, 2] int64: how the steps do
    num_tiles,
    num_read_tiles,
    per_stream,
    next_per_stream,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    TABLE: tl.constexpr,
    MAX: tl.constexpr,
    SAMPLED: tl.constexpr,
):
    """Prepares what follows a round: the tokens that the head reads, the steps of the next draft, the next round."""
    stream = tl.program_id(0)
    j = tl.arange(0, ROWS)
    row = stream * per_stream + j
    inside = j < per_stream
    first = tl.load(position + stream * per_stream)
    own = tl.load(chosen + row, mask=inside, other=-1)
    drafted = tl.load(tokens + row + 1, mask=j + 1 < per_stream, other=-2)
    accepted = tl.min(tl.where(own == drafted, ROWS, j), 0)
    valid = tl.maximum(own, 0)  # -1 (no finite logits) is not in the embedding
    following = first + accepted + 1

    tl.store(read_tokens + row, valid, mask=inside)
    tl.store(read_position + row, first + j, mask=inside)
    tl.store(read_slot + row, first + j, mask=inside)
    move_tiles(read_tiles, num_read_tiles, first, stream, per_stream, TILES)
    tl.store(source + stream, stream * per_stream + accepted)
    tl.store(step_position + stream, following)
    tl.store(step_slot + stream, following)
    tl.store(step_tiles + stream * TILE_SIZE + TILE_POSITION, following)
    tl.store(progress, 0)
    tl.debug_barrier()  # what follows is written over what was read above
    row = stream * next_per_stream + j
    is_next = j < next_per_stream
    tl.store(next_tokens + stream * next_per_stream, tl.sum(tl.where(j == accepted, valid, 0), 0))
    tl.store(next_position + row, following + j, mask=is_next)
    tl.store(slot + row, following + j, mask=is_next)
    move_tiles(tiles, num_tiles, following, stream, next_per_stream, TILES)
    if SAMPLED:
        number, entries = tl.load(at + stream), table + stream * TABLE * 2
        copy_settings(read_settings + stream * per_stream * 2, entries, number + 1, per_stream, ROWS)
        number += accepted + 1
        copy_settings(settings + stream * next_per_stream * 2, entries, number, next_per_stream, ROWS)
        for part in tl.static_range(2):
            entry = tl.load(entries + (number + j) * 2 + part, mask=is_next)
            tl.store(plan + (j * MAX + stream) * 2 + part, entry, mask=is_next)
        tl.debug_barrier()
        tl.store(at + stream, number)


@triton.jit(do_not_specialize=("per_stream",), do_not_specialize_on_alignment=("tokens",))
def put_draft_kernel(
    drafted,  # [steps, 2, MAX] int32
    tokens,  # [rows] int32, a stream's draft after its first row
    per_stream,
    ROWS: tl.constexpr,
    MAX: tl.constexpr,
):
    stream = tl.program_id(0)
    j = tl.arange(0, ROWS)
    is_step = j + 1 < per_stream
    token = tl.load(drafted + j * 2 * MAX + stream, mask=is_step, other=0)
    tl.store(tokens + stream * per_stream + 1 + j, tl.maximum(token, 0), mask=is_step)


@dataclass(slots=True)
class _RoundStreams:
    """The streams of a round: the length of each text, and its next token."""

    sequences: list[PooledSequence]
    samplings: list[Sampling | None]
    versions: list[int]  # of their pages
    lengths: list[int]
    pending: list[int]

    @classmethod
    def of_drafts(cls, requests: Sequence[ExtendRequest], sequences: Sequence[PooledSequence]) -> _RoundStreams:
        samplings: list[Sampling | None] = [request.sampling for request in requests]
        pending = [request.pending[-1] for request in requests]
        return cls(list(sequences), samplings, _versions(sequences), [s.length for s in sequences], pending)

    @classmethod
    def of_rows(cls, requests: Sequence[ScoreRequest], parts: Sequence[SequenceRows]) -> _RoundStreams:
        sequences = [part.sequence for part in parts]
        samplings = [request.sampling for request in requests]
        pending = [part.pending[0] for part in parts]
        return cls(sequences, samplings, _versions(sequences), [part.start for part in parts], pending)


@dataclass(frozen=True, slots=True)
class _Scored:
    """The rows of a round: a stream has `per_stream` of the bucket's, its next token and the draft."""

    bucket: TargetBucket
    per_stream: int
    own: tuple[torch.Tensor, torch.Tensor] | None = None  # tokens and positions, if the bucket is laid out anew

    @property
    def tokens(self) -> torch.Tensor:
        return self.bucket.batch.tokens if self.own is None else self.own[0]

    @property
    def position(self) -> torch.Tensor:
        return self.bucket.batch.position if self.own is None else self.own[1]

    def kept(self) -> _Scored:
        """The same, valid when the bucket has other rows."""
        return replace(self, own=(self.tokens.clone(), self.position.clone()))


@dataclass(slots=True)
class _Round:
    """A forward pass that was started, possibly before the host asked for it."""

    scored: _Scored
    chosen: Copied  # [rows]
    features: torch.Tensor | None
    streams: _RoundStreams
    draft: Copied | None = None  # [steps, 2, streams]: what it scores, and the bits of the probabilities
    chains: list[tuple[int, ...]] | None = None  # the same, once the host has seen it


class HeadRounds:
    def __init__(
        self, bucket: Callable[[int], HeadBucket], draft_loop: DraftLoop, context_length: int, device: torch.device
    ) -> None:
        """`bucket`: finds the head's for a number of rows."""
        self._bucket = bucket
        self._draft_loop = draft_loop
        self._context_length = context_length
        self._under_way: _Round | None = None
        self._last_draft: tuple[Sequence[PooledSequence], int] | None = None  # for whom, and how long
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}  # by rows and whether it is sampled
        self._table = torch.zeros(MAX_SKINNY_ROWS, _TABLE, 2, dtype=torch.int64, device=device)
        pinned = device.type == "cuda"
        self._table_hosts = [torch.zeros(self._table.shape, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]
        self._at = torch.zeros(MAX_SKINNY_ROWS, dtype=torch.int32, device=device)
        self._drafts = HostCopies((_MAX_ROWS, 2, MAX_SKINNY_ROWS), device)
        self._chosen = HostCopies((_MAX_TILES,), device)

    def warm_up(self, target: Callable[[int], TargetBucket]) -> None:
        """Captures the graphs. Runs a draft of each length on arbitrary rows before, which compiles the kernels.
        `target`: finds the target's bucket for a number of rows.
        """
        memory = torch.cuda.graph_pool_handle()  # of all of them: one runs at a time
        for rows, sampled in product(_CAPTURED, (False, True)):
            scored = _Scored(target(rows), rows)
            self._draft(scored, scored, 1, sampled)
            with captured_graph(memory) as self._graphs[rows, sampled]:
                self._draft(scored, scored, 1, sampled)

    def forget(self) -> None:
        """Another forward pass uses the buffers."""
        self._under_way = None

    @property
    def is_under_way(self) -> bool:
        return self._under_way is not None

    def drafted(self, requests: Sequence[ExtendRequest], sequences: Sequence[PooledSequence]) -> list[Extension] | None:
        """The requested chains, if the device is drafting them already."""
        now, steps = self._under_way, requests[0].steps
        is_even = all(request.steps == steps for request in requests)
        self._last_draft = (sequences, steps) if is_even else None
        if now is None or now.draft is None or not is_even or len(now.draft.data) != steps:
            return None
        if now.streams != _RoundStreams.of_drafts(requests, sequences):
            return None
        host = now.draft.wait()[:, :, : len(sequences)]
        tokens, chances = host[:, 0].T.tolist(), host[:, 1].contiguous().view(torch.float32).T.tolist()
        now.chains = [tuple(chain) for chain in tokens]
        return [Extension(*chain) for chain in zip(tokens, chances, strict=True)]

    def score(
        self, target: Callable[[int], TargetBucket], requests: Sequence[ScoreRequest], parts: Sequence[SequenceRows],
        asked: Sequence[RowChoice | None],
    ) -> list[int] | None:  # fmt: skip
        """The chosen tokens of all rows, if the device runs this round already or can continue after it; else None.

        Starts the next round before it waits for this one. `target`: as for `warm_up`.
        """
        now, self._under_way = self._under_way, None
        next_rows, per_stream = self._next_rows(requests, parts), parts[0].num_rows
        bucket = target(sum(part.num_rows for part in parts))
        if now is None or not _is_asked_for(now, bucket, requests, parts):
            if not next_rows:
                return None
            now = self._begin(bucket, requests, parts, asked)
        following = None
        if next_rows and all(has_room(part, per_stream + next_rows, self._context_length) for part in parts):
            following = self._follow(now, parts, _Scored(target(len(parts) * next_rows), next_rows))
        tokens: list[int] = now.chosen.wait().tolist()
        note_features(parts, now.features)
        if following:
            taken = [_taken(part, tokens[i * per_stream :]) for i, part in enumerate(parts)]
            lengths = [part.start + len(own) for part, own in zip(parts, taken, strict=True)]
            following.streams = replace(now.streams, lengths=lengths, pending=[own[-1] for own in taken])
        self._under_way = following
        return tokens

    def _next_rows(self, requests: Sequence[ScoreRequest], parts: Sequence[SequenceRows]) -> int:
        """Rows of each stream in the next round, if the device can start it: the head drafted chains of one length for
        all streams, and will draft chains of one length again. Else 0.
        """
        steps, next_steps, sequences = len(parts[0].tree), requests[0].next_draft, [part.sequence for part in parts]
        if not steps or not next_steps or (sequences, steps) != self._last_draft:
            return 0
        is_even = all(len(p.pending) == 1 and p.tree.is_chain and len(p.tree) == steps for p in parts)
        stays_even = all(request.next_draft == next_steps for request in requests)
        most = max(steps, next_steps) + 1
        fits = most <= _MAX_ROWS and len(parts) * most <= _MAX_TILES
        can_start = is_even and stays_even and fits and chooses_alone([request.sampling for request in requests])
        return next_steps + 1 if can_start else 0

    def _begin(
        self, bucket: TargetBucket, requests: Sequence[ScoreRequest], parts: Sequence[SequenceRows],
        asked: Sequence[RowChoice | None],
    ) -> _Round:  # fmt: skip
        """Starts a round from the host, and prepares the buffers of those that follow."""
        for part in parts:
            make_room(part, self._context_length)
        bucket.batch.fill(parts, ahead=AHEAD)
        bucket.chooser.ask(asked)
        per_stream = parts[0].num_rows
        started = self._start(_Scored(bucket, per_stream), _RoundStreams.of_rows(requests, parts))
        step = self._bucket(len(parts))
        step.batch.fill([SequenceRows(p.sequence, p.start + per_stream, [0]) for p in parts], ahead=AHEAD)
        step.chooser.ask([])
        self._lay_read(parts, per_stream)
        if _is_sampled(started.streams):
            self._send_table(requests)
        return started

    def _lay_read(self, parts: Sequence[SequenceRows], per_stream: int) -> None:
        """Lays out the rows with which the head reads the tokens that a round accepts."""
        read = self._bucket(len(parts) * per_stream)
        read.batch.fill(_rows_of(parts, per_stream), ahead=AHEAD)
        read.chooser.ask([])

    def _send_table(self, requests: Sequence[ScoreRequest]) -> None:
        choices = [RowChoice(r.sampling, r.position + i) for r in requests if r.sampling for i in range(_TABLE)]
        self._table_hosts.reverse()  # the other one may still be on its way
        host = self._table_hosts[0][: len(requests)]
        host.numpy()[:] = settings_of(choices).reshape(host.shape)
        self._table[: len(requests)].copy_(host, non_blocking=True)
        self._at.zero_()

    def _start(self, scored: _Scored, streams: _RoundStreams) -> _Round:
        scored.bucket.run()
        rows = len(streams.sequences) * scored.per_stream
        chosen = self._chosen.begin(scored.bucket.chooser.chosen[0, :rows])
        return _Round(scored, chosen, scored.bucket.rows_of_features(rows).clone(), streams)

    def _follow(self, now: _Round, parts: Sequence[SequenceRows], following: _Scored) -> _Round:
        """Starts the next round. The lengths of its texts are not known yet."""
        before, count, per_stream, is_sampled = now.scored, len(parts), following.per_stream, _is_sampled(now.streams)
        is_alike = before.per_stream == per_stream
        if not is_alike:
            before = before.kept()
            following.bucket.batch.fill(_rows_of(parts, per_stream), ahead=AHEAD)
            following.bucket.chooser.ask([])
        graph = self._graphs.get((per_stream, is_sampled)) if is_alike and count == 1 else None
        if graph:  # starting a dozen kernels takes the host longer than the device needs for all of them
            graph.replay()
        else:
            self._draft(before, following, count, is_sampled)
        if is_sampled:
            for used in (following.bucket, self._bucket(count * before.per_stream), self._bucket(count)):
                used.chooser.settings_changed()
        draft = self._drafts.begin(self._draft_loop.drafted[: per_stream - 1])
        if not is_alike:
            self._lay_read(parts, per_stream)
        started = self._start(following, now.streams)
        started.draft = draft
        return started

    def _draft(self, before: _Scored, following: _Scored, count: int, sampled: bool) -> None:
        """The work between two forward passes: accepts, reads the accepted tokens, drafts."""
        read, step = self._bucket(count * before.per_stream), self._bucket(count)
        self._accept(before, following, count, sampled)
        read.fuse(before.bucket.rows_of_features(count * before.per_stream))
        read.run()
        self._draft_loop.follow(read, step, following.per_stream - 1)
        self._put_draft(following.bucket, count, following.per_stream)

    def _accept(self, before: _Scored, following: _Scored, count: int, sampled: bool) -> None:
        read, step = self._bucket(count * before.per_stream), self._bucket(count)
        batch, chooser = following.bucket.batch, following.bucket.chooser
        accept_kernel[(count,)](
            before.bucket.chooser.chosen, before.tokens, before.position, batch.tokens, batch.position, batch.slot,
            batch.tiles, read.batch.tokens, read.batch.position, read.batch.slot, read.batch.tiles,
            step.batch.position, step.batch.slot, step.batch.tiles, step.batch.source, step.batch.progress,
            self._table, self._at, chooser.settings, read.chooser.settings, self._draft_loop.plan, batch.capacity,
            read.batch.capacity, before.per_stream, following.per_stream,
            ROWS=_MAX_ROWS, TILES=_MAX_TILES, TABLE=_TABLE, MAX=MAX_SKINNY_ROWS, SAMPLED=sampled, num_warps=2,
        )  # fmt: skip

    def _put_draft(self, bucket: TargetBucket, count: int, per_stream: int) -> None:
        drafted = self._draft_loop.drafted
        put_draft_kernel[(count,)](
            drafted, bucket.batch.tokens, per_stream, ROWS=_MAX_ROWS, MAX=MAX_SKINNY_ROWS, num_warps=1
        )


def _is_asked_for(
    now: _Round, bucket: TargetBucket, requests: Sequence[ScoreRequest], parts: Sequence[SequenceRows]
) -> bool:
    """Whether a round that was started is the requested one."""
    if now.scored.bucket is not bucket or now.chains != [part.tree.tokens for part in parts]:
        return False
    even = all(len(part.pending) == 1 and part.tree.is_chain for part in parts)
    return even and now.streams == _RoundStreams.of_rows(requests, parts)


def _rows_of(parts: Sequence[SequenceRows], per_stream: int) -> list[SequenceRows]:
    """`per_stream` rows of each stream, from its position now; the device moves them on to the next one."""
    return [SequenceRows(part.sequence, part.start, [0] * per_stream) for part in parts]


def _taken(part: SequenceRows, own: Sequence[int]) -> list[int]:
    """The tokens that a stream gains, as the device sees it."""
    accepted = next((i for i, token in enumerate(part.tree.tokens) if own[i] != token), len(part.tree))
    return list(own[: accepted + 1])


def _is_sampled(streams: _RoundStreams) -> bool:
    return any(sampling is not None and not sampling.is_greedy for sampling in streams.samplings)


def _versions(sequences: Sequence[PooledSequence]) -> list[int]:
    return [sequence.pages_version for sequence in sequences]
