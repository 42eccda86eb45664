from __future__ import annotations

from slipstream.server.fair_queue import FairQueue


def started(queue: FairQueue[int], count: int) -> list[int]:
    return [entry[1] for _ in range(count) if (entry := queue.start_next())]


def test_one_key_is_first_come_first_served():
    queue = FairQueue[int]()
    for number in range(4):
        queue.add("a", number)
    assert started(queue, 9) == [0, 1, 2, 3]
    assert len(queue) == 0


def test_keys_get_equal_shares_whatever_they_ask_for():
    queue = FairQueue[int]()
    for number in range(6):
        queue.add("greedy", number)
    queue.add("modest", 10)
    queue.add("modest", 11)
    assert started(queue, 4) == [0, 10, 1, 11]


def test_with_one_place_keys_take_turns():
    queue = FairQueue[int]()
    for number in range(4):
        queue.add("greedy", number)
    order = started(queue, 1)
    queue.add("modest", 10)
    queue.add("modest", 11)
    for last in ("greedy", "modest", "greedy"):
        queue.finished(last)
        order += started(queue, 1)
    assert order == [0, 10, 1, 11]


def test_one_that_waits_can_leave():
    queue = FairQueue[int]()
    queue.add("a", 1)
    queue.add("a", 2)
    assert queue.remove("a", 1)
    assert not queue.remove("a", 1)
    assert not queue.remove("b", 2)
    assert started(queue, 2) == [2]
