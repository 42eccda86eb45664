"""CostModel: what a round with a forward of n rows takes on this machine, learned while decoding.

RoundCosts keeps two of them, and in step: as contexts grow or a machine gets busy, rounds of all sizes get slower.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Collection, Mapping

_WINDOW = 9  # samples kept per bucket
_OFTEN = 4
_FEW_SIZES = 4
_SAFE_SHARE = 0.65  # tokens expected of a row: even at the full price of a row a third is lost at most
_UNSEEN_SLOPE = 0.02  # what an unseen row is thought to cost at least, as a share: low, so that it gets tried


def bucket_of(rows: int) -> int:
    """Exact to 16 rows, then steps of about an eighth."""
    if rows <= 16:
        return rows
    step = 1 << (rows.bit_length() - 4)
    return -(-rows // step) * step


class CostModel:
    """Median seconds by number of rows; straight lines between what was seen."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._rows: list[int] = []  # buckets seen, ascending
        self._seconds: list[float] = []  # their cost, as far as nothing is unread
        self._unread: set[int] = set()  # buckets with samples that nobody has asked about yet

    def record(self, rows: int, seconds: float) -> None:
        bucket = bucket_of(rows)
        if bucket not in self._samples:
            self._samples[bucket] = deque(maxlen=_WINDOW)
            bisect.insort(self._rows, bucket)
        self._samples[bucket].append(seconds)
        self._unread.add(bucket)

    def _fit(self) -> None:
        """A size seen often speaks for itself: kernels that take four rows at once make three cost more than four.
        One seen a few times costs no more than a larger one: a hiccup only ever makes a round longer."""
        for bucket in self._unread:
            self._medians[bucket] = _median(self._samples[bucket])
        self._unread.clear()
        fitted: list[float] = []
        least = math.inf
        for rows in reversed(self._rows):
            least = min(least, self._medians[rows])
            fitted.append(self._medians[rows] if len(self._samples[rows]) >= _OFTEN else least)
        self._seconds = fitted[::-1]

    def knows(self, rows: int, num_samples: int) -> bool:
        """Whether so many samples were seen of something not far from `rows`."""
        return any(len(s) >= num_samples and rows <= 2 * seen and seen <= 2 * rows for seen, s in self._samples.items())

    @property
    def largest(self) -> int:
        """The most rows seen so far; 0 before the first record."""
        return self._rows[-1] if self._rows else 0

    def seconds(self, rows: int, tokens: float = 0.0) -> float:
        """Expected cost of a round of `rows` rows. 0 before the first record.

        `tokens`: expected of it. A size that was never seen is taken for cheap where little is lost if it is not.
        """
        if not self._rows:
            return 0.0
        if self._unread:
            self._fit()
        bucket = bucket_of(rows)
        at = bisect.bisect_left(self._rows, bucket)
        if at == len(self._rows):
            return self._seconds[-1] + self._slope(tokens >= _SAFE_SHARE * rows) * (bucket - self._rows[-1])
        if at == 0 or self._rows[at] == bucket:
            return self._seconds[at]
        below, above = self._rows[at - 1], self._rows[at]
        share = (bucket - below) / (above - below)
        return self._seconds[at - 1] + share * (self._seconds[at] - self._seconds[at - 1])

    def _slope(self, is_safe: bool) -> float:
        """Of rows beyond the largest seen: as steep as what was seen.

        A few sizes may be taken for flat: kernels that take four rows at once make three no measure of four.
        """
        flat = _UNSEEN_SLOPE * self._seconds[-1]
        if len(self._rows) < (_FEW_SIZES if is_safe else 2):
            return flat
        return max(flat, (self._seconds[-1] - self._seconds[0]) / (self._rows[-1] - self._rows[0]))

    def curve(self) -> dict[int, float]:
        """Seconds by rows, as learned."""
        if self._unread:
            self._fit()
        return dict(zip(self._rows, self._seconds, strict=True))


def _median(samples: Collection[float]) -> float:
    """It shrugs off a scheduler's hiccup, and takes the lower of two: a hiccup only ever makes a round longer."""
    return sorted(samples)[(len(samples) - 1) // 2]


class RoundCosts:
    """Rounds by rows, and rounds of plain decoding by streams.

    The former are kept as measured before the first answer, or as they were at first, and told at the pace of now:
    that of plain rounds which were waited for, as those with drafts are. `plain` are rounds at their quickest: where a
    device runs ahead, they are not waited for.
    """

    def __init__(self) -> None:
        self._by_rows = CostModel()
        self._waited_for = CostModel()  # plain rounds, by streams
        self._first_s: dict[int, float] = {}  # what those took at first, or were expected to
        self._has_expectations = False
        self._paces: dict[int, float] = {}  # by streams, as far as they were asked for since the last record
        self.plain = CostModel()

    def expect(self, by_rows: Mapping[int, float]) -> None:
        """What was measured before the first round."""
        for rows, seconds in by_rows.items():
            self._by_rows.record(rows, seconds)
        self._has_expectations = bool(by_rows)

    def record(self, rows: int, num_streams: int, seconds: float) -> None:
        """A round that was waited for."""
        if rows == num_streams:
            self._waited_for.record(num_streams, seconds)
            if self._has_expectations:
                self._first_s.setdefault(num_streams, self._by_rows.seconds(num_streams))
            elif self._waited_for.knows(num_streams, _OFTEN):
                self._first_s.setdefault(num_streams, self._waited_for.seconds(num_streams))
        self._paces.clear()
        self._by_rows.record(rows, seconds / self._pace(num_streams))

    def seconds(self, rows: int, num_streams: int, tokens: float = 0.0) -> float:
        """Of a round of `rows` rows for `num_streams` streams, `tokens` expected of it (see CostModel)."""
        return self._by_rows.seconds(rows, tokens) * self._pace(num_streams)

    @property
    def largest(self) -> int:
        return self._by_rows.largest

    def curve(self) -> dict[int, float]:
        return self._by_rows.curve()

    def _pace(self, num_streams: int) -> float:
        """Rounds of now over those at first."""
        if num_streams not in self._paces:
            first_s, now_s = self._first_s.get(num_streams, 0.0), self._waited_for.seconds(num_streams)
            self._paces[num_streams] = now_s / first_s if first_s and now_s else 1.0
        return self._paces[num_streams]
