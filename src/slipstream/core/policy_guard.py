"""PolicyGuard: follows a policy, and keeps its errors away from streams.

The text does not depend on the policy. If the policy raises, or keeps drafts that can't be scored, the round is a plain
one; the next round asks it again.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from slipstream.core.drafter_guard import DrafterGuard
from slipstream.core.policy import Policy, RoundOutcome, RoundPlan, RoundView
from slipstream.core.stats import Stats
from slipstream.core.stream import Offer, Stream
from slipstream.core.tree import EMPTY_TREE, DraftTree

log = logging.getLogger("slipstream")


@dataclass(frozen=True, slots=True)
class RoundDraft:
    """What a round scores, and how it was chosen."""

    trees: Sequence[DraftTree]  # one for each stream of the view
    draft_s: Mapping[str, float] = field(default_factory=dict)  # by the name of the drafter
    next_draft: int | None = None  # tokens of the next one for each stream, if that is known
    plan: RoundPlan | None = None  # None: there was no drafter to ask, or the policy failed
    offers: Mapping[int, Sequence[Offer]] = field(default_factory=dict)  # by the id of the stream


class PolicyGuard:
    def __init__(self, policy: Policy, drafters: DrafterGuard, stats: Stats) -> None:
        self._policy = policy
        self._drafters = drafters
        self._stats = stats  # records failures
        self._warned: set[type[Exception]] = set()  # each kind of failure is logged once

    def draft(self, view: RoundView) -> RoundDraft:
        """Asks drafters according to the policy's plan. Without drafters there is nothing to plan."""
        plain = [EMPTY_TREE] * len(view.streams)
        if not any(stream.drafter for stream in view.streams):
            return RoundDraft(plain, next_draft=0)
        draft_s: Counter[str] = Counter()
        offers: defaultdict[int, list[Offer]] = defaultdict(list)
        try:
            plan = self._policy.plan(view)
            while asks := plan.asks():
                proposals, took_s = self._drafters.propose(asks)
                plan.receive(asks, proposals, sum(took_s.values()))
                draft_s.update(took_s)
                for ask, tree in zip(asks, proposals, strict=True):
                    offers[ask.stream.id].append(Offer(ask.drafter.name, tree))
            trees = plan.keep()
            _check(trees, view, self._drafters.vocab_size)
            return RoundDraft(trees, draft_s, _checked_next(plan.next_draft), plan, offers)
        except Exception as error:
            self._warn("the round continues without a draft", error)
            return RoundDraft(plain, draft_s)

    def record(self, outcome: RoundOutcome) -> None:
        self._call(lambda: self._policy.record(outcome), "it could not learn from a round")

    def forget(self, stream: Stream) -> None:
        self._call(lambda: self._policy.forget(stream), "it could not release a stream")

    def _call(self, call: Callable[[], None], consequence: str) -> None:
        try:
            call()
        except Exception as error:
            self._warn(consequence, error)

    def _warn(self, consequence: str, error: Exception) -> None:
        self._stats.policy_error = f"policy failed, {consequence}: {type(error).__name__}: {error}"
        if type(error) not in self._warned:
            self._warned.add(type(error))
            log.warning(self._stats.policy_error)
            log.debug("the policy's traceback", exc_info=error)


def _checked_next(count: object) -> int | None:
    if count is not None and (not isinstance(count, int) or count < 0):
        raise TypeError(f"it says that {count!r} tokens are drafted next; expected 0 or more, or None")
    return count


def _check(trees: Sequence[DraftTree], view: RoundView, vocab_size: int) -> None:
    """Raises TypeError or ValueError if a plan keeps something that a forward pass can't score."""
    sizes = [len(tree) for tree in trees]
    for tree in trees:
        if not isinstance(tree, DraftTree):
            raise TypeError(f"it keeps a {type(tree).__name__}; expected a DraftTree")
    tokens = [*chain.from_iterable([tree.tokens for tree in trees])]
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise ValueError(f"it keeps token ids from {min(tokens)} to {max(tokens)} of {vocab_size}")
    if len(sizes) != len(view.streams):
        raise ValueError(f"it keeps {len(sizes)} drafts for {len(view.streams)} streams")
    if sum(sizes) > (0 if view.started_plain else view.max_nodes) or any(map(int.__gt__, sizes, view.rooms)):
        raise ValueError(
            f"it keeps drafts of {sizes} tokens; the limits are {view.rooms} per stream and {view.max_nodes} in all"
        )
