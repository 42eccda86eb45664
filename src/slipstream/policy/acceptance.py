"""Acceptance: p, the probability that the target accepts a token of one drafter, by one chain of shrinkage.

    confidence  ->  calibrated for this drafter  ->  that of similar tokens (by confidence, depth)  ->  this stream

Each step starts from the one before, which weighs as much as `2 * PRIOR` tokens, and moves towards the observations.
The first and the last step shift the odds by how much acceptance was above or below the expectation; the one in between
is a mean. The uncertainty of p follows from the number of observations.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from slipstream.core.tree import ROOT, DraftTree
from slipstream.policy.constants import BUCKETS, LOSS_SHARE, MEMORY, PRIOR, RECENT, UNKNOWN


@dataclass(slots=True)
class AcceptanceRecord:
    """Tokens that were tried, accepted, and expected to be accepted. Old observations fade."""

    tried: float = 0.0
    taken: float = 0.0
    expected: float = 0.0

    def add(self, taken: bool, expected: float, memory: float) -> None:
        self.tried = self.tried * memory + 1
        self.taken = self.taken * memory + taken
        self.expected = self.expected * memory + expected

    def fade(self, share: float) -> None:
        """Scales all counts by this factor."""
        self.tried *= share
        self.taken *= share
        self.expected *= share

    def mean(self, before: float, left: float = 1.0, prior: float = 2 * PRIOR) -> Chance:
        """The mean of the observations, scaled by `left`, and the earlier estimate, which weighs `prior` tokens."""
        weight = self.tried * left + prior
        return Chance((self.taken * left + before * prior) / weight, weight) if weight else Chance(before, 0.0)

    def odds_shift(self, left: float = 1.0) -> float:
        """The odds of the accepted tokens divided by the odds of the expected ones."""
        tried, taken, expected = self.tried * left, self.taken * left, self.expected * left
        return (taken + PRIOR) / (tried - taken + PRIOR) * (tried - expected + PRIOR) / (expected + PRIOR)


class Chance(NamedTuple):
    """p, and the number of tokens behind it."""

    p: float
    weight: float

    def quantile(self, z: float) -> float:
        """p plus `z` standard deviations, within 0 and 1. The deviation is computed with p half a token away from 0 and
        1: a drafter that was always right so far may still be wrong.
        """
        inner = (self.p * self.weight + 0.5) / (self.weight + 1)
        return min(1.0, max(0.0, self.p + z * math.sqrt(inner * (1 - inner) / (self.weight + 1))))


Cells = list[AcceptanceRecord]


class Acceptance:
    """The observations of one drafter. `recent` are those of a stream: how often its first drafted token was
    accepted.
    """

    def __init__(self) -> None:
        self._drafter = AcceptanceRecord()
        self._first = [AcceptanceRecord() for _ in range(BUCKETS)]  # tokens of drafts, by confidence
        self._deeper = [AcceptanceRecord() for _ in range(BUCKETS)]
        self._depths: dict[int, AcceptanceRecord] = defaultdict(AcceptanceRecord)
        self._seen_at: Counter[int] = Counter()  # by depth: the last draft with an observation at it
        self._num_drafts = 0

    def of_tree(self, tree: DraftTree, recent: AcceptanceRecord) -> list[Chance]:
        """The probability that each node is accepted: the product of p along its path."""
        odds, shift = self._drafter.odds_shift(), recent.odds_shift()
        chances: list[Chance] = []
        for confidence, parent in zip(_confidences(tree), tree.parents, strict=True):
            if parent == ROOT:
                p, weight = _given_parent(self._first, confidence, odds)
                chances.append(Chance(_shifted(p, shift), weight))
            else:
                p, weight = _given_parent(self._deeper, confidence, odds)
                above, least = chances[parent]
                chances.append(Chance(p * above, weight if weight < least else least))
        return chances

    def of_depths(
        self, depth: int, recent: Sequence[AcceptanceRecord], left: float = 1.0, prior: float = 2 * PRIOR
    ) -> list[Chance]:
        """The probability that drafts for these streams are accepted to depth 1, 2 … `depth`, for any confidence. Stops
        where it is negligible.

        `left`: how much the observations still count; `prior`: the weight in tokens of the estimate for unknown tokens.
        """
        shift = _mean_shift(recent, left)
        own_p, path, least, chances = UNKNOWN, 1.0, math.inf, list[Chance]()
        for d in range(1, depth + 1):
            record = self._depths.get(d)
            weight = prior
            if record:
                own_p, weight = record.mean(own_p, left * self._left_of(d), prior)
            path *= own_p if chances else _shifted(own_p, shift)
            least = min(least, weight)
            chances.append(Chance(path, least))
            if path < LOSS_SHARE:
                break
        return chances

    def _left_of(self, depth: int) -> float:
        """Observations at a depth that drafts no longer reach fade, so a few rejections there do not end trials."""
        return float(MEMORY ** (self._num_drafts - self._seen_at[depth]))

    def observe(
        self, proposed: DraftTree, tokens: Sequence[int], recent: AcceptanceRecord, *, ended_early: bool = False
    ) -> None:
        """Learns from the tokens a stream gained, also about nodes that were proposed but not scored. An empty draft
        counts as one whose first token was rejected; one that `ended_early`, because the drafter was not sure, as one
        whose next token was.
        """
        depth_of, odds = {ROOT: 0}, self._drafter.odds_shift()  # nodes that the text goes through
        seen = reached = 0
        for node, (token, parent, confidence) in enumerate(
            zip(proposed.tokens, proposed.parents, _confidences(proposed), strict=True)
        ):
            depth = depth_of.get(parent, len(tokens)) + 1
            if depth > len(tokens):
                continue
            seen, taken = max(seen, depth), token == tokens[depth - 1]
            if taken:
                reached = depth_of[node] = depth
            self._learn(self._deeper if depth > 1 else self._first, confidence, odds, taken, recent)
        if ended_early and reached == max(proposed.depths(), default=0):
            seen = reached + 1
        self._num_drafts += 1
        for depth in range(1, max(seen, 1) + 1):
            record = self._depths[depth]
            record.fade(self._left_of(depth))
            self._seen_at[depth] = self._num_drafts
            record.tried += 1
            record.taken += depth <= reached

    def _learn(self, cells: Cells, confidence: float, odds: float, taken: bool, recent: AcceptanceRecord) -> None:
        expected, _ = _given_parent(cells, confidence, odds)
        if cells is self._first:
            recent.add(taken, expected, RECENT)
        cells[_bucket(confidence)].add(taken, expected, MEMORY)
        self._drafter.add(taken, confidence, MEMORY)


def _mean_shift(recent: Sequence[AcceptanceRecord], left: float) -> float:
    """Of the odds, over these streams."""
    if len(recent) == 1:
        return recent[0].odds_shift(left)
    return math.exp(fmean(math.log(record.odds_shift(left)) for record in recent)) if recent else 1.0


def _given_parent(cells: Cells, confidence: float, odds: float) -> tuple[float, float]:
    """The probability that a token is accepted if the one before it was, in any stream, and the tokens behind it. This
    runs for each drafted token: it is `mean`, without its calls.
    """
    cell = cells[_bucket(confidence)]
    weight = cell.tried + 2 * PRIOR
    return (cell.taken + 2 * PRIOR * _shifted(confidence, odds)) / weight, weight


def _confidences(tree: DraftTree) -> Sequence[float]:
    return tree.confidence or [UNKNOWN] * len(tree)


def _bucket(confidence: float) -> int:
    return int(confidence * BUCKETS) if confidence < 1 else BUCKETS - 1


def _shifted(p: float, odds: float) -> float:
    return p * odds / (p * odds + (1 - p))  # in this order it is never above 1, however it is rounded
