"""Acceptance: p, the chance that the target takes a token of one drafter, by one chain of shrinkage.

    confidence  ->  as this drafter means it  ->  as tokens like it fared (by confidence and depth)  ->  in this stream

Each link starts from the one before, which weighs as much as `2 * PRIOR` tokens, and moves to what was seen. The first
and the last shift the odds by how often more or less was taken than expected; the one in between is a mean. How far p
may be off follows from how much was seen.
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
    """Tokens that were tried, taken, and expected to be taken. Old ones fade."""

    tried: float = 0.0
    taken: float = 0.0
    expected: float = 0.0

    def add(self, taken: bool, expected: float, memory: float) -> None:
        self.tried = self.tried * memory + 1
        self.taken = self.taken * memory + taken
        self.expected = self.expected * memory + expected

    def fade(self, share: float) -> None:
        """Leaves so much of it."""
        self.tried *= share
        self.taken *= share
        self.expected *= share

    def mean(self, before: float, left: float = 1.0, prior: float = 2 * PRIOR) -> Chance:
        """Of what was seen, as far as it is `left`, and the chance that was believed before, which weighs `prior`."""
        weight = self.tried * left + prior
        return Chance((self.taken * left + before * prior) / weight, weight) if weight else Chance(before, 0.0)

    def odds_shift(self, left: float = 1.0) -> float:
        """The odds of what was taken over the odds of what was expected."""
        tried, taken, expected = self.tried * left, self.taken * left, self.expected * left
        return (taken + PRIOR) / (tried - taken + PRIOR) * (tried - expected + PRIOR) / (expected + PRIOR)


class Chance(NamedTuple):
    """p, and how many tokens it rests on."""

    p: float
    weight: float

    def quantile(self, z: float) -> float:
        """p plus `z` standard deviations, within 0 and 1. The deviation is that of p half a token off its bounds: who
        was always right so far may be wrong."""
        inner = (self.p * self.weight + 0.5) / (self.weight + 1)
        return min(1.0, max(0.0, self.p + z * math.sqrt(inner * (1 - inner) / (self.weight + 1))))


Cells = list[AcceptanceRecord]


class Acceptance:
    """What was seen of one drafter. `recent` is what was seen of a stream: how often its drafts began right."""

    def __init__(self) -> None:
        self._drafter = AcceptanceRecord()
        self._first = [AcceptanceRecord() for _ in range(BUCKETS)]  # tokens of drafts, by confidence
        self._deeper = [AcceptanceRecord() for _ in range(BUCKETS)]
        self._depths: dict[int, AcceptanceRecord] = defaultdict(AcceptanceRecord)
        self._seen_at: Counter[int] = Counter()  # by depth: the draft that showed something of it last
        self._num_drafts = 0

    def of_tree(self, tree: DraftTree, recent: AcceptanceRecord) -> list[Chance]:
        """That each node ends up accepted: the product of p along its path."""
        odds, shift = self._drafter.odds_shift(), recent.odds_shift()
        chances: list[Chance] = []
        for confidence, parent in zip(_confidences(tree), tree.parents, strict=True):
            if parent == ROOT:
                p, weight = self._given_parent(self._first, confidence, odds)
                chances.append(Chance(_shifted(p, shift), weight))
            else:
                p, weight = self._given_parent(self._deeper, confidence, odds)
                before = chances[parent]
                chances.append(Chance(p * before.p, weight if weight < before.weight else before.weight))
        return chances

    def of_depths(
        self, depth: int, recent: Sequence[AcceptanceRecord], left: float = 1.0, prior: float = 2 * PRIOR
    ) -> list[Chance]:
        """That drafts for these streams are accepted to depth 1, 2 … `depth`, whatever their confidence. Ends where it
        hardly matters.

        `left`: how much of what was seen still counts; `prior`: how many tokens weigh what is believed of unknown ones.
        """
        shift = math.exp(fmean(math.log(record.odds_shift(left)) for record in recent)) if recent else 1.0
        own, chances = Chance(UNKNOWN, 2 * PRIOR), list[Chance]()
        for d in range(1, depth + 1):
            own = self._depths[d].mean(own.p, left * self._left_of(d), prior)
            if chances:
                chances.append(Chance(chances[-1].p * own.p, min(chances[-1].weight, own.weight)))
            else:
                chances.append(Chance(_shifted(own.p, shift), own.weight))
            if chances[-1].p < LOSS_SHARE:
                break
        return chances

    def _left_of(self, depth: int) -> float:
        """What lies deeper than was seen fades with each draft: bad luck there must not end all tries."""
        return float(MEMORY ** (self._num_drafts - self._seen_at[depth]))

    def observe(self, proposed: DraftTree, tokens: Sequence[int], recent: AcceptanceRecord) -> None:
        """Learns from the tokens a stream gained, also about nodes that were proposed and never scored. A draft of
        nothing counts as one whose first token was rejected."""
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
        self._num_drafts += 1
        for depth in range(1, max(seen, 1) + 1):
            record = self._depths[depth]
            record.fade(self._left_of(depth))
            self._seen_at[depth] = self._num_drafts
            record.tried += 1
            record.taken += depth <= reached

    def _learn(self, cells: Cells, confidence: float, odds: float, taken: bool, recent: AcceptanceRecord) -> None:
        expected = self._given_parent(cells, confidence, odds).p
        if cells is self._first:
            recent.add(taken, expected, RECENT)
        cells[_bucket(confidence)].add(taken, expected, MEMORY)
        self._drafter.add(taken, confidence, MEMORY)

    def _given_parent(self, cells: Cells, confidence: float, odds: float) -> Chance:
        """That a token is taken if the one before it was, in any stream."""
        return cells[_bucket(confidence)].mean(_shifted(confidence, odds))


def _confidences(tree: DraftTree) -> Sequence[float]:
    return tree.confidence or [UNKNOWN] * len(tree)


def _bucket(confidence: float) -> int:
    return min(int(confidence * BUCKETS), BUCKETS - 1)


def _shifted(p: float, odds: float) -> float:
    return p * odds / (p * odds + 1 - p)
