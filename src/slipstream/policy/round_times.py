"""RoundTimes: t(n), the seconds of a round with n rows: one curve, measured at load, times one live scale.

    t(n) = scale * (curve(n) + host)

`curve` has the times of forward passes of n rows, measured before the first answer, made monotone and interpolated
linearly. `host` is the time of a round beyond its forward pass, learned from the first rounds. `scale` follows the
current speed of the machine: contexts grow, and other programs use the machine. A measured size also corrects its own
point of the curve.

A device may start a plain round before the host asks for it, which hides the host's work. The time of such rounds is
kept as a share of t: it is the cost of plain decoding there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate, pairwise
from statistics import median

from slipstream.policy.constants import FAR_OFF, FIRST_ROUNDS, RECENT, SCALE_STEP, SIZE_BITS


class RoundTimes:
    def __init__(self) -> None:
        self._points: dict[int, float] = {}
        self._is_measured = False  # at load
        self._first: list[tuple[int, float]] = []  # rows and seconds of the first rounds
        self._first_of: dict[int, list[float]] = {}  # seconds of the first rounds with drafts, by size
        self._host_s = 0.0
        self._scale = 1.0
        self._ahead: float | None = None  # time of plain rounds that the device started by itself, as a share of t(S)
        self._asking: float | None = None  # the same if drafters were asked meanwhile
        self._rows: list[int] = []
        self._seconds: list[float] = []

    def expect(self, curve: Mapping[int, float]) -> None:
        """Sets the times of forward passes measured before the first round, by rows."""
        self._points.update(curve)
        self._is_measured = bool(curve)
        self._fit()

    @property
    def is_known(self) -> bool:
        """Whether times are known: from a curve measured at load, or from the first plain rounds."""
        return bool(self._points)

    def rescale(self, share: float) -> None:
        """Multiplies all times by `share`."""
        self._scale *= share

    def seconds(self, rows: int) -> float:
        """Never lower for more rows. 0 before anything is known."""
        return self._scale * (self._forward_s(rows) + self._host_s)

    def each(self, first: int, last: int) -> list[float]:
        """Seconds of rounds with `first` rows, with one more, and so on to `last`."""
        scale, host_s = self._scale, self._host_s
        return [scale * (seconds + host_s) for seconds in self._curve(last + 1)[first:]]

    # -- a device that runs ahead -----------------------------------------------------------------------------------

    @property
    def is_ahead_known(self) -> bool:
        return self._ahead is not None

    def plain(self, num_streams: int) -> float:
        """The time of a round in a series of plain rounds."""
        return self.seconds(num_streams) * (1.0 if self._ahead is None else self._ahead)

    def head_start(self, num_streams: int) -> float:
        """The time of a round that is saved where the device starts it by itself: the host's work is hidden."""
        return self.seconds(num_streams) - self.plain(num_streams)

    def asking(self, num_streams: int) -> float:
        """The time that asking drafters adds to a round that the device started by itself."""
        if self._ahead is None or self._asking is None:
            return 0.0
        return max(0.0, self._asking - self._ahead) * self.seconds(num_streams)

    def drafting(self, num_streams: int, seconds: float) -> float:
        """The time that asking drafters adds to a round that waits for them, if drafting itself took `seconds`. With
        many streams most of it is the policy's own work, which is measured in rounds that the device started."""
        return max(seconds, self.asking(num_streams)) if seconds else 0.0

    def record_ahead(self, num_streams: int, seconds: float, was_asked: bool) -> None:
        """Records a plain round that the device started by itself."""
        share = seconds / max(self.seconds(num_streams), 1e-12)
        if was_asked:
            self._asking = capped_mean(self._asking, share)
        else:
            self._ahead = min(1.0, capped_mean(self._ahead, share))

    def record(self, rows: int, seconds: float, *, is_plain: bool = True) -> None:
        """Records a round that the device did not start early, without its drafting time. A plain round corrects the
        scale; a round with a draft corrects the scale and the cost of its size, in equal parts.

        Steps of a fixed size, up or down, follow the median: a delayed round counts no more than any other. Where the
        first rounds of a size are far off, their median is taken at once: what drafts for many streams cost the host is
        not measured at load.
        """
        size = rows if rows in self._points else size_of(rows)
        if len(self._first) < FIRST_ROUNDS:
            self._first.append((size, seconds))
            self._learn_host()
        elif size not in self._points:  # the first measurement of a size is all that is known about it
            self._points[size] = max(seconds / self._scale - self._host_s, 0.0)
        elif not is_plain and self._is_far_off(size, seconds):
            self._points[size] = max(median(self._first_of[size]) / self._scale - self._host_s, 0.0)
        else:
            step = 1 + SCALE_STEP if seconds > self.seconds(rows) else 1 - SCALE_STEP
            self._scale *= step
            if is_plain:
                return
            self._points[size] *= step
        self._fit()

    def _is_far_off(self, size: int, seconds: float) -> bool:
        """Whether the first rounds of a size, once there are enough, took so long that steps would follow too late."""
        early = self._first_of.setdefault(size, [])
        if len(early) >= FIRST_ROUNDS:
            return False
        early.append(seconds)
        return len(early) == FIRST_ROUNDS and median(early) > FAR_OFF * self.seconds(size)

    def _learn_host(self) -> None:
        """If nothing was measured at load, the first measured time becomes the curve."""
        if self._is_measured:
            self._host_s = max(0.0, median(seconds - self._forward_s(rows) for rows, seconds in self._first))
        else:
            for rows in {rows for rows, _ in self._first}:
                self._points[rows] = median(seconds for size, seconds in self._first if size == rows)

    def _forward_s(self, rows: int) -> float:
        """One value of the curve, interpolated linearly between known points."""
        after = bisect_left(self._rows, rows)
        if after == 0:
            return self._seconds[0] if self._rows else 0.0
        before, low = self._rows[after - 1], self._seconds[after - 1]
        if after == len(self._rows):
            return low + self._slope() * (rows - before)
        high, distance = self._seconds[after], self._rows[after] - before
        return low + (high - low) / distance * (rows - before) if before + distance > rows else high

    def _curve(self, count: int) -> list[float]:
        """The values for 0 to `count - 1` rows. They change after most rounds with drafts; numpy is slower."""
        curve = [self._seconds[0]] * (self._rows[0] + 1) if self._rows else [0.0] * count
        for (before, low), (rows, high) in pairwise(zip(self._rows, self._seconds, strict=True)):
            if len(curve) >= count:
                return curve[:count]
            slope = (high - low) / (rows - before)
            curve += [low + slope * i for i in range(1, rows - before)]
            curve.append(high)
        if len(curve) < count:
            slope, last = self._slope(), self._seconds[-1]
            curve += [last + slope * i for i in range(1, count - len(curve) + 1)]
        return curve[:count]

    def _slope(self) -> float:
        """The slope beyond the last point: the mean slope of the known points; 0 if only one size is known, so that
        others are tried.
        """
        spread = self._rows[-1] - self._rows[0]
        return (self._seconds[-1] - self._seconds[0]) / spread if spread else 0.0

    def _fit(self) -> None:
        """More rows never cost less: if they were measured to cost less, the smaller size gets the larger one's
        time.
        """
        self._rows = sorted(self._points)
        self._seconds = list(accumulate((self._points[rows] for rows in reversed(self._rows)), min))[::-1]

    def curve(self) -> dict[int, float]:
        """The currently expected seconds by rows."""
        return {rows: self.seconds(rows) for rows in self._rows}


def capped_mean(known: float | None, seen: float) -> float:
    """Recent mean. A mean, not a median, because a late round makes the next one short. One value counts as at most
    twice the mean: otherwise one delay by other programs makes plain decoding look slow for as long as drafts are made.
    """
    return seen if known is None else RECENT * known + (1 - RECENT) * min(seen, 2 * known)


def size_of(rows: int) -> int:
    """The size class of a number of rows: its leading bits, rounded up."""
    step = 1 << max(0, rows.bit_length() - SIZE_BITS - 1)
    return -(-rows // step) * step
