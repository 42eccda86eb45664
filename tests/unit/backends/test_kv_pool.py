"""KVPool: pages are shared, copied, promised and given back, and never lost."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool, PooledSequence
from slipstream.errors import CapacityError
from slipstream.models.config import DecoderConfig

CONFIG = DecoderConfig(
    architecture="llama", vocab_size=8, hidden_size=2, intermediate_size=2, num_layers=1, num_heads=1,
    num_kv_heads=1, head_dim=2, context_length=4096, norm_eps=1e-5, rope_theta=10000.0,
)  # fmt: skip
MARGIN_PAGES = 2  # room for drafts that every stream is promised


def make_pool(num_pages: int) -> KVPool:
    return KVPool(CONFIG, num_pages * PAGE_SIZE, torch.float32, torch.device("cpu"))


def feed(pool: KVPool, sequence: PooledSequence, tokens: list[int]) -> None:
    """What a forward does to the cache: each token's cell holds its id and its position."""
    write(pool, sequence, tokens, ())
    sequence.commit()


def write(pool: KVPool, sequence: PooledSequence, pending: list[int], draft: tuple[int, ...]) -> None:
    start = sequence.length
    sequence.prepare(pending, draft)
    for i, token in enumerate([*pending, *draft]):
        cell = sequence.cell(start + i)
        pool.keys[0, cell, 0, 0] = token
        pool.values[0, cell, 0, 0] = token


def held(pool: KVPool, sequence: PooledSequence) -> list[int]:
    """The tokens that the cache holds for a sequence, by its pages."""
    return [int(pool.keys[0, sequence.cell(i), 0, 0]) for i in range(sequence.length)]


def free_pages(pool: KVPool) -> int:
    return len(pool._free)


def forget_all(pool: KVPool) -> None:
    while pool._remembered:
        pool._forget_oldest()


def num_reused(pool: KVPool, tokens: list[int]) -> int:
    sequence = pool.open(tokens, 0)
    sequence.close()
    return sequence.length


# -- sharing ------------------------------------------------------------------------------------------------------


def test_a_new_pool_has_all_its_pages() -> None:
    assert free_pages(make_pool(7)) == 7


def test_the_room_is_rounded_up_to_whole_pages() -> None:
    assert KVPool(CONFIG, PAGE_SIZE + 1, torch.float32, torch.device("cpu")).num_pages == 2


def test_a_shared_beginning_takes_no_pages() -> None:
    pool = make_pool(10)
    source = pool.open([], 0)
    feed(pool, source, list(range(100)))
    before = free_pages(pool)
    sharer = pool.open([*range(90), 500], 0)
    assert sharer.length == 90
    assert free_pages(pool) == before


def test_writing_on_copies_the_last_shared_page_and_leaves_the_sharer_alone() -> None:
    pool = make_pool(10)
    source = pool.open([], 0)
    feed(pool, source, list(range(40)))
    sharer = pool.open([*range(36), 500], 0)
    feed(pool, source, [7] * 10)
    feed(pool, sharer, [8] * 10)
    assert held(pool, source) == [*range(40), *[7] * 10]
    assert held(pool, sharer) == [*range(36), *[8] * 10]
    assert source.pages[0] == sharer.pages[0]
    assert source.pages[1] != sharer.pages[1]


def test_the_last_one_to_use_a_page_writes_without_a_copy() -> None:
    pool = make_pool(10)
    source = pool.open([], 0)
    feed(pool, source, list(range(40)))
    fork = source.fork()
    feed(pool, fork, [1])
    page = source.pages[1]
    feed(pool, source, [2])
    assert source.pages[1] == page


def test_a_committed_path_is_moved_behind_the_pending_tokens() -> None:
    pool = make_pool(10)
    sequence = pool.open([], 0)
    feed(pool, sequence, list(range(30)))
    write(pool, sequence, [100], (101, 102, 103, 104, 105))
    sequence.commit((1, 3, 4))
    assert held(pool, sequence) == [*range(30), 100, 102, 104, 105] == sequence.tokens


def test_a_rewind_gives_whole_pages_back_and_those_of_a_draft_too() -> None:
    pool = make_pool(10)
    sequence = pool.open([], 0)
    feed(pool, sequence, list(range(100)))
    write(pool, sequence, [1], (2,) * 60)
    sequence.rewind(33)
    assert free_pages(pool) == 8
    assert held(pool, sequence) == list(range(33))


@pytest.mark.parametrize("length", [-1, 11])
def test_a_rewind_beyond_what_is_held_is_refused(length: int) -> None:
    pool = make_pool(4)
    sequence = pool.open([], 0)
    feed(pool, sequence, list(range(10)))
    with pytest.raises(ValueError, match="of 10 tokens"):
        sequence.rewind(length)


def test_a_commit_needs_a_score() -> None:
    sequence = make_pool(4).open([], 0)
    with pytest.raises(RuntimeError, match="without a score"):
        sequence.commit()


# -- remembering --------------------------------------------------------------------------------------------------


def test_a_closed_stream_is_found_again() -> None:
    pool = make_pool(10)
    first = pool.open([], 0)
    feed(pool, first, list(range(50)))
    first.close()
    again = pool.open(list(range(50)), 0)
    assert again.length == 49
    assert held(pool, again) == list(range(49))


def test_the_longest_beginning_wins() -> None:
    pool = make_pool(20)
    for length in (10, 60, 30):
        sequence = pool.open([], 0)
        feed(pool, sequence, list(range(length)))
        sequence.close()
    assert pool.open(list(range(100)), 0).length == 60


def test_the_oldest_closed_stream_makes_room_first() -> None:
    pool = make_pool(6)
    for number in range(3):  # two pages each
        sequence = pool.open([], 0)
        feed(pool, sequence, [number] * 64)
        sequence.close()
    assert free_pages(pool) == 0
    newcomer = pool.open([], 0)
    feed(pool, newcomer, [9] * 40)  # two pages: those of stream 0
    newcomer.close()
    assert [num_reused(pool, [number] * 64) for number in (0, 1, 2)] == [0, 63, 63]


def test_a_stream_that_was_used_again_outlives_an_older_one() -> None:
    pool = make_pool(6)
    for number in range(2):
        sequence = pool.open([], 0)
        feed(pool, sequence, [number] * 64)
        sequence.close()
    assert num_reused(pool, [0] * 64) == 63
    newcomer = pool.open([], 2 * PAGE_SIZE)
    feed(pool, newcomer, [9] * 4 * PAGE_SIZE)
    newcomer.close()
    assert num_reused(pool, [0] * 5) == 4
    assert num_reused(pool, [1] * 5) == 0


def test_a_forgotten_stream_leaves_the_pages_it_shared() -> None:
    pool = make_pool(6)
    first = pool.open([], 0)
    feed(pool, first, list(range(64)))
    first.close()
    second = pool.open([*range(64), 1], 0)
    forget_all(pool)
    assert held(pool, second) == list(range(64))
    assert free_pages(pool) == 4


def test_forks_are_not_remembered() -> None:
    pool = make_pool(6)
    source = pool.open([], 0)
    feed(pool, source, [1] * 10)
    fork = source.fork()
    feed(pool, fork, [2] * 10)
    fork.close()
    source.close()
    assert pool.open([*[1] * 10, *[2] * 10], 0).length == 10


def test_only_so_many_closed_streams_are_remembered() -> None:
    pool = make_pool(200)
    for number in range(100):
        sequence = pool.open([], 0)
        feed(pool, sequence, [number, number])
        sequence.close()
    assert free_pages(pool) == 200 - 64


# -- promises -----------------------------------------------------------------------------------------------------


def test_a_reserve_beyond_the_pool_is_refused() -> None:
    pool = make_pool(4)
    assert pool.can_open(2 * PAGE_SIZE)
    assert not pool.can_open(2 * PAGE_SIZE + 1)
    with pytest.raises(CapacityError, match="no room"):
        pool.open([], 2 * PAGE_SIZE + 1)
    assert pool.num_open == 0


def test_a_prompt_longer_than_its_reserve_counts_in_full() -> None:
    pool = make_pool(4)
    with pytest.raises(CapacityError):
        pool.open([1] * 3 * PAGE_SIZE, 0)


def test_admitted_streams_never_run_out_of_pages() -> None:
    """All are let in before any is fed, and then all are fed to the end, a draft each time."""
    pool = make_pool(41)
    reserve = 100
    streams = []
    while pool.can_open(reserve):
        streams.append(pool.open([], reserve))
    assert len(streams) == 41 // (4 + MARGIN_PAGES)
    for _ in range(reserve):
        for number, stream in enumerate(streams):
            write(pool, stream, [number], tuple(range(10, 70)))
            stream.commit()
    assert all(held(pool, s) == [n] * reserve for n, s in enumerate(streams))


def test_admitted_streams_with_a_shared_beginning_never_run_out_of_pages() -> None:
    pool = make_pool(30)
    prompt = list(range(70))
    first = pool.open(prompt, 100)
    feed(pool, first, prompt)
    streams = [first]
    while pool.can_open(100):
        streams.append(pool.open([*prompt, 1], 100))
        assert streams[-1].length == 70
    assert len(streams) > 30 // 6  # sharing pays
    for _ in range(30):
        for number, stream in enumerate(streams):
            write(pool, stream, [number], tuple(range(10, 70)))
            stream.commit()
    assert all(held(pool, s) == [*prompt, *[n] * 30] for n, s in enumerate(streams))


def test_branches_leave_admitted_streams_their_pages() -> None:
    pool = make_pool(12)
    stream = pool.open([], 6 * PAGE_SIZE)
    feed(pool, stream, [1] * 10)
    branches = []
    with pytest.raises(CapacityError, match="branch"):
        while True:
            branches.append(stream.fork())
            feed(pool, branches[-1], [2] * 30)
    assert branches
    feed(pool, stream, [3] * (6 * PAGE_SIZE - 10))
    assert held(pool, stream)[-1] == 3


def test_room_comes_back_when_a_stream_closes() -> None:
    pool = make_pool(6)
    first = pool.open([], 4 * PAGE_SIZE)
    assert not pool.can_open(0)
    feed(pool, first, [1] * 100)
    first.close()
    assert pool.can_open(4 * PAGE_SIZE)
    second = pool.open([], 4 * PAGE_SIZE)
    feed(pool, second, [2] * 4 * PAGE_SIZE)
    assert held(pool, second) == [2] * 4 * PAGE_SIZE


def test_a_pool_that_is_full_says_so() -> None:
    pool = make_pool(2)
    sequence = pool.open([], 0)
    with pytest.raises(CapacityError, match="full"):
        sequence.prepare([1] * 100, ())


# -- any order of events ------------------------------------------------------------------------------------------


@dataclass
class Tracked:
    """A sequence and what it must hold."""

    sequence: PooledSequence
    text: list[int]


class PoolMachine(RuleBasedStateMachine):
    """Streams open, share, fork, draft, commit, rewind and close in any order; the cells hold their texts."""

    tracked = Bundle("tracked")

    @initialize()
    def start(self) -> None:
        self.pool = make_pool(24)
        self.open: list[Tracked] = []

    def track(self, sequence: PooledSequence, text: list[int]) -> Tracked:
        entry = Tracked(sequence, text)
        self.open.append(entry)
        return entry

    @rule(target=tracked, tokens=st.lists(st.integers(0, 1), max_size=80), reserve=st.integers(0, 150))
    def open_one(self, tokens: list[int], reserve: int) -> object:
        try:
            sequence = self.pool.open(tokens, reserve)
        except CapacityError:
            assert not self.pool.can_open(max(reserve, len(tokens)))
            return multiple()
        assert sequence.length <= max(0, len(tokens) - 1)
        return self.track(sequence, tokens[: sequence.length])

    @rule(target=tracked, source=tracked)
    def fork_one(self, source: Tracked) -> object:
        try:
            sequence = source.sequence.fork()
        except CapacityError:
            return multiple()
        return self.track(sequence, list(source.text))

    @rule(
        entry=tracked,
        pending=st.lists(st.integers(0, 3), min_size=1, max_size=40),
        draft=st.lists(st.integers(4, 7), max_size=12),
        keep=st.sets(st.integers(0, 11)),
        commits=st.booleans(),
    )
    def score(self, entry: Tracked, pending: list[int], draft: list[int], keep: set[int], commits: bool) -> None:
        try:
            write(self.pool, entry.sequence, pending, tuple(draft))
        except CapacityError:  # these streams write more than they reserved
            entry.sequence.rewind(entry.sequence.length)
            return
        if commits:
            path = sorted(node for node in keep if node < len(draft))
            entry.sequence.commit(path)
            entry.text += [*pending, *(draft[node] for node in path)]

    @rule(entry=tracked, share=st.floats(0, 1))
    def rewind(self, entry: Tracked, share: float) -> None:
        del entry.text[int(share * len(entry.text)) :]
        entry.sequence.rewind(len(entry.text))

    @rule(entry=consumes(tracked), twice=st.booleans())
    def close(self, entry: Tracked, twice: bool) -> None:
        entry.sequence.close()
        if twice:
            entry.sequence.close()
        self.open.remove(entry)

    @invariant()
    def every_sequence_holds_its_text(self) -> None:
        for entry in getattr(self, "open", ()):
            assert entry.sequence.tokens == entry.text == held(self.pool, entry.sequence)

    @invariant()
    def pages_add_up(self) -> None:
        if not hasattr(self, "pool"):
            return
        uses = [0] * self.pool.num_pages
        for sequence in (*self.pool._open.values(), *self.pool._remembered.values()):
            for page in sequence.pages:
                uses[page] += 1
        assert uses == self.pool._users
        assert sorted(self.pool._free) == [page for page, count in enumerate(uses) if count == 0]
        assert self.pool.num_open == len(self.open)

    @invariant()
    def what_is_counted_along_the_way_is_what_a_count_gives(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, sequences = self.pool, self.pool._open.values()
        promised = sum(max(0, s._reserved_pages - len(s.pages)) + bool(s.pages) for s in sequences)
        assert pool.num_promised == promised
        assert pool._unpromised() == len(pool._free) + pool._reclaimable() - promised

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for entry in self.open:
            entry.sequence.close()
        forget_all(self.pool)
        assert free_pages(self.pool) == self.pool.num_pages
        assert self.pool.num_open == 0


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
TestAnyOrderOfEvents = PoolMachine.TestCase
