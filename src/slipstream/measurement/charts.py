"""Where the report's bars and lines stand. report.html.j2 draws them, with the page's colours and fonts.

A series has a CSS class: `plain` for plain decoding, `s0` to `s5` for drafters, `reference` for a dashed line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

NUM_STYLES = 6


@dataclass(frozen=True, slots=True)
class Scale:
    """Of bars: from 0 to `end`, in CSS percentages. Values outside stand at the nearer end, NaN at 0."""

    end: float

    def at(self, value: float) -> str:
        share = value / self.end if math.isfinite(value) else 0.0
        return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float
    words: str = ""  # what the table says of it; a point without words is no measurement
    ringed: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line of style `reference` stretches no axis: what it has above the highest tick is left out."""

    name: str
    points: Sequence[Point]  # by rising x
    style: str

    def words_at(self, x: float) -> str:
        return next((point.words + " ◯" * point.ringed for point in self.points if point.x == x), "–")


@dataclass(frozen=True)
class LineChart:
    """Lines over a numeric x axis, in pixels from the upper left; y starts at zero and reaches `y_top` or more."""

    title: str
    caption: str
    lines: Sequence[Line]
    x_label: str
    y_words: Callable[[float], str]
    y_top: float
    log2_x: bool = False

    width: ClassVar[int] = 420
    height: ClassVar[int] = 210

    @cached_property
    def _measured(self) -> list[Point]:
        return [point for line in self.lines for point in line.points if point.words]

    @cached_property
    def xs(self) -> list[float]:
        return sorted({point.x for point in self._measured})

    @property
    def x_ticks(self) -> list[float]:
        return self.xs[:: math.ceil(len(self.xs) / 16)]  # as many labels as there is room for

    @cached_property
    def y_ticks(self) -> list[float]:
        return _ticks(max(self.y_top, *(point.y for point in self._measured)))

    def at_x(self, x: float) -> float:
        warp = math.log2 if self.log2_x else float
        start, end = warp(self.xs[0]), warp(self.xs[-1])
        share = (warp(x) - start) / (end - start) if end > start else 0.5
        return round(10 + share * (self.width - 20), 1)  # points keep 10 px from the edges

    def at_y(self, y: float) -> float:
        return round(self.height * (1 - y / self.y_ticks[-1]), 1)

    def path(self, line: Line) -> str:
        """For an SVG polyline."""
        inside = [point for point in line.points if point.y <= self.y_ticks[-1]]
        return " ".join(f"{self.at_x(point.x)},{self.at_y(point.y)}" for point in inside)


def _ticks(top: float) -> list[float]:
    """From 0 in round steps to the first at or above `top`."""
    top = top if math.isfinite(top) and top > 0 else 1.0
    scale = 10.0 ** math.floor(math.log10(top / 4))
    step = next(scale * s for s in (1, 2, 2.5, 5, 10) if top / (scale * s) <= 5)
    return [round(i * step, 10) for i in range(math.ceil(top / step - 1e-9) + 1)]
