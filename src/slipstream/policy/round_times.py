"""RoundTimes: t(n), the seconds of a round with n rows: one curve, measured at load, times one live scale.

    t(n) = scale * (curve(n) + host)

`curve` are forwards of n rows as they were measured before the first answer, made monotone, with straight lines
between. `host` is what a round takes beyond its forward: the first rounds tell. `scale` follows how the machine
does now: contexts grow, and other programs come and go. A size that is seen corrects its own point in the same way.

A device may start on a plain round before it is asked to, which hides the host's work. What such rounds take is kept as
a share of t: it is what plain decoding costs there.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from statistics import median

import numpy as np

from slipstream.policy.constants import FIRST_ROUNDS, FOLLOW, RECENT, SIZE_BITS


class RoundTimes:
    def __init__(self) -> None:
        self._points: dict[int, float] = {}
        self._is_measured = False  # at load
        self._first: list[tuple[int, float]] = []  # rows and seconds of the first rounds
        self._host_s = 0.0
        self._scale = 1.0
        self._ahead: float | None = None  # plain rounds that the device started by itself, as a share of t(S)
        self._asking: float | None = None  # the same where drafters were asked meanwhile
        self._rows: list[int] = []
        self._seconds: list[float] = []
        self._curve: list[float] = []  # by rows, as far as anybody asked

    def expect(self, curve: Mapping[int, float]) -> None:
        """Forwards as they were measured before the first round, by rows."""
        self._points.update(curve)
        self._is_measured = bool(curve)
        self._fit()

    @property
    def is_known(self) -> bool:
        """Whether there is something to compare with: a curve measured at load, or the first plain rounds."""
        return bool(self._points)

    def seconds(self, rows: int) -> float:
        """Never less for more rows. 0 before anything is known."""
        return self._scale * (self._curve_to(rows)[rows] + self._host_s)

    def each(self, first: int, last: int) -> list[float]:
        """Seconds of rounds with `first` rows, with one more, and so on to `last`."""
        scale, host_s = self._scale, self._host_s
        return [scale * (seconds + host_s) for seconds in self._curve_to(last)[first : last + 1]]

    # -- a device that runs ahead -----------------------------------------------------------------------------------

    @property
    def is_ahead_known(self) -> bool:
        return self._ahead is not None

    def plain(self, num_streams: int) -> float:
        """What a round takes if nothing is drafted for long."""
        return self.seconds(num_streams) * (1.0 if self._ahead is None else self._ahead)

    def asking(self, num_streams: int) -> float:
        """What it adds to a round that the device started by itself if drafters are asked meanwhile."""
        if self._ahead is None or self._asking is None:
            return 0.0
        return max(0.0, self._asking - self._ahead) * self.seconds(num_streams)

    def record_ahead(self, num_streams: int, seconds: float, was_asked: bool) -> None:
        """A plain round that the device had started by itself."""
        share = seconds / max(self.seconds(num_streams), 1e-12)
        if was_asked:
            self._asking = _follow(self._asking, share)
        else:
            self._ahead = min(1.0, _follow(self._ahead, share))

    def record(self, rows: int, seconds: float, *, is_plain: bool = True) -> None:
        """A round that was waited for, its drafting left out. A plain one shows the scale; one that scored a draft, the
        scale and the cost of its size, in equal parts.

        Steps of one size, up or down, follow the median: a round that was held up counts no more than any other.
        """
        size = size_of(rows)
        if len(self._first) < FIRST_ROUNDS:
            self._first.append((size, seconds))
            self._learn_host()
        elif size not in self._points:  # the first that is seen of a size is all that is known of it
            self._points[size] = max(seconds / self._scale - self._host_s, 0.0)
        else:
            step = 1 + FOLLOW if seconds > self.seconds(rows) else 1 - FOLLOW
            self._scale *= step
            if is_plain:
                return
            self._points[size] *= step
        self._fit()

    def _learn_host(self) -> None:
        """What was not measured at load is as it was seen first, all of it the curve's."""
        if self._is_measured:
            self._host_s = max(0.0, median(seconds - self._curve_to(rows)[rows] for rows, seconds in self._first))
        else:
            for rows in {rows for rows, _ in self._first}:
                self._points[rows] = median(seconds for size, seconds in self._first if size == rows)

    def _curve_to(self, rows: int) -> list[float]:
        """The curve by rows, to `rows` at least: straight lines between what is known."""
        if len(self._curve) <= rows:
            wanted = np.arange(2 * (rows + 8))
            if self._rows:
                beyond = np.maximum(wanted - self._rows[-1], 0)
                self._curve = (np.interp(wanted, self._rows, self._seconds) + self._slope() * beyond).tolist()
            else:
                self._curve = [0.0] * len(wanted)
        return self._curve

    def _slope(self) -> float:
        """Of rows beyond the last point: as steep as all that is known; none where one size is, so others are tried."""
        spread = self._rows[-1] - self._rows[0]
        return (self._seconds[-1] - self._seconds[0]) / spread if spread else 0.0

    def _fit(self) -> None:
        """More rows never cost less: where they were measured to, the smaller size gets the larger one's time."""
        self._curve = []
        self._rows = sorted(self._points)
        self._seconds = list(accumulate((self._points[rows] for rows in reversed(self._rows)), min))[::-1]

    def curve(self) -> dict[int, float]:
        """Seconds by rows, as they are expected now."""
        return {rows: self.seconds(rows) for rows in self._rows}


def _follow(known: float | None, seen: float) -> float:
    return seen if known is None else RECENT * known + (1 - RECENT) * seen


def size_of(rows: int) -> int:
    """The size that a number of rows counts as: its leading bits, rounded up."""
    step = 1 << max(0, rows.bit_length() - SIZE_BITS - 1)
    return -(-rows // step) * step
