"""The best possible choices for one stream: the least time in which an answer can be had, by dynamic programming.

It knows which drafted tokens are right, drafts only those, and weighs each choice by where it leaves the next round:
what a draft model has to read then, and whether a device that runs ahead is at the next plain round already.
"""

from __future__ import annotations

from functools import cache

from policy_replay.machines import Machine
from policy_replay.replay import Case, Speeds
from policy_replay.stand_ins import draft_seconds

_MOST_UNREAD = 12  # tokens; with more, drafting costs about as much


def best_path(case: Case) -> Speeds:
    """The quickest that each answer of the queue can be decoded."""
    seconds: dict[int, float] = {}
    for answer in set(case.queue):
        seconds[answer] = _least_seconds(case, answer)
    by_answer = {
        number: (case.answers[answer].num_tokens - 1) / seconds[answer] for number, answer in enumerate(case.queue)
    }
    return Speeds(by_answer)


def _least_seconds(case: Case, answer: int) -> float:
    num_tokens = case.answers[answer].num_tokens
    is_free = not any(name in case.machine.drafts for name in case.members)

    @cache
    def least(known: int, was_plain: bool, unread: int) -> float:
        """Of all rounds that are left."""
        if known >= num_tokens:
            return 0.0
        more = 1 if is_free else min(unread + 1, _MOST_UNREAD)
        best = _plain_s(case.machine, was_plain) + least(known + 1, True, more)
        for name, drafts in case.drafts.items():
            right = min(drafts.num_right(answer, known), num_tokens - known - 1)
            for length in range(1, right + 1):
                after = 1 if is_free else 2 if name in case.machine.drafts else min(unread + length + 1, _MOST_UNREAD)
                seconds = _drafted_s(case, name, length, unread)
                best = min(best, seconds + least(known + length + 1, False, after))
        return best

    return least(1, False, 1 if is_free else 2)


def _plain_s(machine: Machine, was_plain: bool) -> float:
    if machine.runs_ahead and was_plain:
        return max(machine.forward_s(1) - machine.launch_s, machine.host(1))
    return machine.forward_s(1) + machine.host(1)


def _drafted_s(case: Case, drafter: str, length: int, unread: int) -> float:
    machine, cost = case.machine, case.machine.drafts.get(drafter)
    drafting_s = draft_seconds(cost, [unread], [length]) if cost else machine.free_draft(1)
    seconds = drafting_s + machine.forward_s(1 + length)
    if case.goes_on_alone:  # as if the device had been at just this
        return max(seconds - machine.launch_s, machine.host(1))
    return seconds + machine.host(1)
