"""Acceptance: p, the probability that the target accepts a token of one drafter, by one chain of shrinkage.

    confidence  ->  calibrated for this drafter  ->  that of similar tokens (by confidence, depth)  ->  this stream

Each step starts from the one before, which weighs as much as `2 * PRIOR` tokens, and moves towards the observations.
The first and the last step shift the odds by how much acceptance was above or below the expectation; the one in between
is a mean. The uncertainty of p follows from the number of observations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from slipstream.core.tree import DraftTree
from slipstream.policy.constants import BUCKETS, CAUTION, LOSS_SHARE, MEMORY, PRIOR, RECENT, UNKNOWN


@dataclass(slots=True)
class AcceptanceRecord:
    """Tokens that were tried, accepted, and expected to be accepted. Old observations fade."""

    tried: float = 0.0
    taken: float = 0.0
    expected: float = 0.0

    def add(self, taken: bool, expected: float) -> None:
        self.tried = self.tried * RECENT + 1
        self.taken = self.taken * RECENT + taken
        self.expected = self.expected * RECENT + expected

    def odds_shift(self, left: float = 1.0) -> float:
        """The odds of the accepted tokens divided by the odds of the expected ones."""
        tried, taken, expected = self.tried * left, self.taken * left, self.expected * left
        return (taken + PRIOR) / (tried - taken + PRIOR) * (tried - expected + PRIOR) / (expected + PRIOR)

    def surety(self) -> float:
        """The exponent that turns a chance into the drafter's own estimate of it: below 1 if that is too high."""
        tried = self.tried + 2 * PRIOR
        return math.log((self.expected + PRIOR) / tried) / math.log((self.taken + PRIOR) / tried)


class Chance(NamedTuple):
    """p, and the number of tokens behind it."""

    p: float
    weight: float


def quantile(p: float, weight: float, z: float) -> float:
    """p plus `z` standard deviations, within 0 and 1. The deviation is computed with p half a token away from 0 and 1:
    a drafter that was always right so far may still be wrong.
    """
    inner = (p * weight + 0.5) / (weight + 1)
    value = p + z * math.sqrt(inner * (1 - inner) / (weight + 1))
    return 0.0 if value < 0 else value if value < 1 else 1.0


class TreeChances(NamedTuple):
    """The probability of each node of a tree, and that by `CAUTION` below: no node's is above its parent's."""

    p: list[float]
    cautious: list[float]


class JudgedDraft(NamedTuple):
    """A stream's draft, and the tokens that the stream gained instead or with it."""

    tree: DraftTree
    tokens: Sequence[int]
    recent: AcceptanceRecord
    ended_early: bool = False


class Acceptance:
    """The observations of one drafter. `recent` are those of a stream: how often its first drafted token was
    accepted.

    What runs for each drafted token of each stream is written out in its loop: calls would take most of the time.
    """

    def __init__(self) -> None:
        self._drafter = AcceptanceRecord()
        self._tried = [0.0] * 2 * BUCKETS  # tokens by confidence: the first ones of drafts, then deeper ones
        self._taken = [0.0] * 2 * BUCKETS
        self._tried_at: list[float] = []  # by depth, from 1
        self._taken_at: list[float] = []
        self._seen_at: list[int] = []  # the last draft with an observation at it
        self._num_drafts = 0

    def of_trees(self, trees: Sequence[DraftTree], recent: Sequence[AcceptanceRecord]) -> list[TreeChances]:
        """The probability that each node of these streams' drafts is accepted: the product of p along its path. The
        cautious one is `quantile` of it at -CAUTION, written out, and no more than its parent's.
        """
        prior, odds, found, root = 2 * PRIOR, self._drafter.odds_shift(), list[TreeChances](), math.sqrt
        classes = [(taken, tried + prior) for taken, tried in zip(self._taken, self._tried, strict=True)]
        first, deeper = [*classes[:BUCKETS], classes[BUCKETS - 1]], [*classes[BUCKETS:], classes[-1]]  # again for 1.0
        for tree, record in zip(trees, recent, strict=True):
            shift = record.odds_shift()
            chances: list[float] = []
            weights: list[float] = []
            cautious: list[float] = []
            for confidence, parent in zip(_confidences(tree), tree.parents, strict=True):
                right = confidence * odds
                right /= right + (1 - confidence)
                if parent < 0:
                    taken, weight = first[int(confidence * BUCKETS)]
                    p, above = _shifted((taken + prior * right) / weight, shift), 1.0
                else:
                    taken, weight = deeper[int(confidence * BUCKETS)]
                    p, above = (taken + prior * right) / weight * chances[parent], cautious[parent]
                    weight = weight if weight < weights[parent] else weights[parent]
                inner = (p * weight + 0.5) / (weight + 1)
                least = p - CAUTION * root(inner * (1 - inner) / (weight + 1))
                chances.append(p)
                weights.append(weight)
                cautious.append(0.0 if least < 0 else least if least < above else above)
            found.append(TreeChances(chances, cautious))
        return found

    def as_expected(self, chance: float) -> float:
        """The drafter's own estimate for tokens that are right together with this chance, but not less than it."""
        return float(chance ** min(self._drafter.surety(), 1.0))

    def of_depths(
        self, depth: int, recent: Sequence[AcceptanceRecord], left: float = 1.0, prior: float = 2 * PRIOR
    ) -> list[Chance]:
        """The probability that drafts for these streams are accepted to depth 1, 2 … `depth`, whatever their
        confidence. Stops where it is negligible.

        `left`: how much the observations still count; `prior`: the weight in tokens of the estimate for unknown tokens.
        """
        shift = _mean_shift(recent, left)
        own_p, path, least, chances = UNKNOWN, 1.0, math.inf, list[Chance]()
        for d in range(1, depth + 1):
            weight = prior
            if d <= len(self._seen_at):
                own_p, weight = self._mean_at(d, own_p, left * self._left_of(d), prior)
            path *= own_p if chances else _shifted(own_p, shift)
            least = min(least, weight)
            chances.append(Chance(path, least))
            if path < LOSS_SHARE:
                break
        return chances

    def _mean_at(self, depth: int, before: float, left: float, prior: float) -> Chance:
        """The mean of the observations, scaled by `left`, and the earlier estimate, which weighs `prior` tokens."""
        tried, taken = self._tried_at[depth - 1] * left, self._taken_at[depth - 1] * left
        weight = tried + prior
        return Chance((taken + before * prior) / weight, weight) if weight else Chance(before, 0.0)

    def _left_of(self, depth: int) -> float:
        """Observations at a depth that drafts no longer reach fade, so a few rejections there do not end trials."""
        return float(MEMORY ** (self._num_drafts - self._seen_at[depth - 1]))

    def observe(self, drafts: Sequence[JudgedDraft]) -> None:
        """Learns from the tokens that streams gained, also about nodes that were proposed but not scored. An empty
        draft counts as one whose first token was rejected; one that `ended_early`, because the drafter was not sure, as
        one whose next token was.
        """
        judged = []  # the depth to which each draft was judged, and that to which it was accepted
        for tree, tokens, recent, ended_early in drafts:
            seen, reached = self._observe_tokens(tree, tokens, recent)
            if ended_early and reached == max(tree.depths(), default=0):
                seen = reached + 1
            judged.append((seen or 1, reached))
        self._observe_depths(judged)

    def _observe_tokens(self, tree: DraftTree, tokens: Sequence[int], recent: AcceptanceRecord) -> tuple[int, int]:
        drafter, tried_of, taken_of, prior, memory = self._drafter, self._tried, self._taken, 2 * PRIOR, MEMORY
        odds, num_tokens, seen, reached = drafter.odds_shift(), len(tokens), 0, 0
        depth_of = [num_tokens] * len(tree.tokens) + [0]  # less for nodes that the text goes through; ROOT is the last
        tried, right, expected, confidences = drafter.tried, drafter.taken, drafter.expected, _confidences(tree)
        for node, parent in enumerate(tree.parents):
            above = depth_of[parent]
            if above == num_tokens:
                continue
            taken, confidence = tree.tokens[node] == tokens[above], confidences[node]
            at = int(confidence * BUCKETS) if confidence < 1 else BUCKETS - 1
            if above:
                at += BUCKETS
            else:
                p = (taken_of[at] + prior * _shifted(confidence, odds)) / (tried_of[at] + prior)
                recent.add(taken, p)
            if above >= seen:
                seen = above + 1
            if taken:
                reached = depth_of[node] = above + 1
            tried_of[at], taken_of[at] = tried_of[at] * memory + 1, taken_of[at] * memory + taken
            tried, right, expected = tried * memory + 1, right * memory + taken, expected * memory + confidence
        drafter.tried, drafter.taken, drafter.expected = tried, right, expected
        return seen, reached

    def _observe_depths(self, judged: Sequence[tuple[int, int]]) -> None:
        """Of each draft: the depth to which it was judged, and that to which it was accepted."""
        deepest = max([seen for seen, _ in judged], default=0)
        for by_depth in (self._tried_at, self._taken_at, self._seen_at):
            by_depth += [0] * (deepest - len(by_depth))
        for i in range(deepest):
            tried, taken, at = self._tried_at[i], self._taken_at[i], self._seen_at[i]
            for num_drafts, (seen, reached) in enumerate(judged, self._num_drafts + 1):
                if seen > i:
                    left = MEMORY ** (num_drafts - at)
                    tried, taken, at = tried * left + 1, taken * left + (reached > i), num_drafts
            self._tried_at[i], self._taken_at[i], self._seen_at[i] = tried, taken, at
        self._num_drafts += len(judged)


def _mean_shift(recent: Sequence[AcceptanceRecord], left: float) -> float:
    """Of the odds, over these streams."""
    if len(recent) == 1:
        return recent[0].odds_shift(left)
    return math.exp(fmean(math.log(record.odds_shift(left)) for record in recent)) if recent else 1.0


def _confidences(tree: DraftTree) -> Sequence[float]:
    return tree.confidence or [UNKNOWN] * len(tree)


def _shifted(p: float, odds: float) -> float:
    return p * odds / (p * odds + (1 - p))  # in this order it is never above 1, however it is rounded
