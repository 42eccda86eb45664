"""The report's charts, as inline SVG.

Built as an element tree, so that whatever a name holds is escaped. Colours and fonts are the page's: elements carry
classes only. A series of style `n` has class `s<n>`, plain decoding has `plain`.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from markupsafe import Markup

NUM_STYLES = 6
LABEL_CHARS = 26
CHAR_PX = 7.0  # of 13 px text, a little more than most fonts take
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    low: float
    high: float
    style: str
    faded: bool = False
    flag: str = ""


@dataclass(frozen=True, slots=True)
class BarGroup:
    label: str
    bars: list[Bar]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: list[tuple[float, float]]
    style: str
    marked: frozenset[float] = frozenset()  # the x of the points that carry a ring and a label


@dataclass(frozen=True, slots=True)
class Stack:
    """One bar of shares; the parts come in the order and with the classes of the caller's legend."""

    label: str
    parts: list[tuple[str, float]]  # (class, share)


@dataclass(frozen=True, slots=True)
class Axes:
    x_label: str
    y_format: Callable[[float], str]
    y_top: float = 0.0  # at least this high
    log2_x: bool = False
    guide: tuple[float, str] | None = None  # a horizontal line and its words
    proportional: bool = False  # a dashed line y = x


def speedup_bars(groups: Sequence[BarGroup], width: int, ident: str, desc: str) -> Markup:
    """Bars with 95 % whiskers and a line at 1.0x. Under 600 px the labels stand above the bars."""
    narrow = width < 600
    names = {bar.name for group in groups for bar in group.bars}
    bars = [bar for group in groups for bar in group.bars]
    name_chars = 0 if len(names) < 2 else min(14 if narrow else 24, max(map(len, names)))
    right = 64 + name_chars * 6.3 + (54 if any(bar.flag for bar in bars) else 0)
    left = 0.0 if narrow else min(LABEL_CHARS, max(len(group.label) for group in groups)) * CHAR_PX + 18
    best = max(bar.value for bar in bars)
    end = max(1.2, min(max(bar.high for bar in bars), 2 * best))
    step, thick, head = (17, 12, 24) if narrow else (18, 13, 14)
    top = 22.0
    height = top + sum(head + step * len(group.bars) for group in groups) + 12

    def at(value: float) -> float:
        return left + min(value, end) / end * (width - left - right)

    svg = _svg(width, height, ident, "Speed-up by kind of text and drafter", desc)
    for tick in _ticks(end):
        if tick > end:
            break
        _line(svg, at(tick), top - 6, at(tick), height - 8, "grid")
        _text(svg, at(tick), 11, f"{tick:g}×", "tick mid" if tick else "tick")
    y = top
    for group in groups:
        middle = y + head + step * len(group.bars) / 2 - (step - thick) / 2
        if narrow:
            _text(svg, 0, y + 17, group.label, "label", limit=48)
        else:
            _two_lines(svg, middle + 4, group.label)
        y += head
        for bar in group.bars:
            _speedup_bar(svg, bar, at, y, thick, name_chars)
            y += step
        if narrow:  # broken where the kind is named
            _line(svg, at(1), y - step * len(group.bars) - 3, at(1), y, "one")
    if not narrow:
        _line(svg, at(1), top - 6, at(1), height - 8, "one")
    return _markup(svg)


def _two_lines(svg: ET.Element, middle: float, label: str) -> None:
    lines = textwrap.wrap(label, LABEL_CHARS) or [""]
    if len(lines) > 2:
        lines = [lines[0], _shorten(" ".join(lines[1:]), LABEL_CHARS)]
    for i, line in enumerate(lines):
        _text(svg, 0, middle + 15 * (i - (len(lines) - 1) / 2), line, "label", limit=LABEL_CHARS)


def _speedup_bar(
    svg: ET.Element, bar: Bar, at: Callable[[float], float], y: float, thick: float, name_chars: int
) -> None:
    rect = _rect(svg, at(0), y, at(bar.value) - at(0), thick, f"{bar.style}{' faded' if bar.faded else ''}")
    spread = f" [{bar.low:.2f}–{bar.high:.2f}]" if bar.high > bar.low else ""
    _child(rect, "title", f"{bar.name}: {bar.value:.2f}×{spread}")
    middle = y + thick / 2
    if bar.high > bar.low:
        _line(svg, at(bar.low), middle, at(bar.high), middle, "halo")
        _line(svg, at(bar.low), middle, at(bar.high), middle, "whisker")
        for end in (bar.low, bar.high):
            _line(svg, at(end), middle - 3, at(end), middle + 3, "whisker")
    x, words_px = max(at(bar.high), at(bar.value)) + 8, 48 + 6.3 * min(len(bar.name), name_chars)
    if x < at(1) + 8 and x + words_px > at(1) - 6:  # the line would go through the words
        x = at(1) + 8
    text = _text(svg, x, middle + 4.5, "", "value")
    _child(text, "tspan", f"{bar.value:.2f}×")
    if name_chars:
        _child(text, "tspan", _shorten(bar.name, name_chars), {"class": "name", "dx": "7"})
    if bar.flag:
        _child(text, "tspan", bar.flag, {"class": "flag", "dx": "7"})


def line_chart(lines: Sequence[Line], axes: Axes, ident: str, title: str, desc: str) -> Markup:
    """Lines over a numeric x axis; y starts at zero. Styles differ in colour, marker and dash."""
    width, height, left, right, top, bottom = 480.0, 270.0, 44.0, 18.0, 18.0, 42.0
    xs = sorted({x for line in lines for x, _ in line.points})
    ticks = _ticks(max(axes.y_top, max(y for line in lines for _, y in line.points)))
    warp = math.log2 if axes.log2_x else float
    start, end = warp(xs[0]), warp(xs[-1])

    def at_x(x: float) -> float:
        inset = 10.0
        share = (warp(x) - start) / (end - start) if end > start else 0.5
        return left + inset + share * (width - left - right - 2 * inset)

    def at_y(y: float) -> float:
        return height - bottom - y / ticks[-1] * (height - top - bottom)

    svg = _svg(width, height, ident, title, desc)
    for tick in ticks:
        _line(svg, left, at_y(tick), width - right, at_y(tick), "grid")
        _text(svg, left - 8, at_y(tick) + 4, axes.y_format(tick), "tick end")
    for x in _spaced(xs, at_x, 26):
        _text(svg, at_x(x), height - bottom + 18, f"{x:g}", "tick mid")
    _text(svg, (left + width - right) / 2, height - 6, axes.x_label, "axis mid")
    if axes.proportional and len(xs) > 1:
        _proportional(svg, xs, ticks[-1], at_x, at_y)
    if axes.guide:
        value, words = axes.guide
        _line(svg, left, at_y(value), width - right, at_y(value), "one")
        _text(svg, width - right, at_y(value) + 14, words, "note end")
    taken = [(at_x(x), at_y(y)) for line in lines for x, y in line.points if x in line.marked]
    for line in lines:
        _draw_line(svg, line, at_x, at_y, axes.y_format, taken)
    return _markup(svg)


def _proportional(
    svg: ET.Element, xs: Sequence[float], top: float, at_x: Callable[[float], float], at_y: Callable[[float], float]
) -> None:
    """The line y = x / first x, cut off where it leaves the chart."""
    last = min(xs[-1], top * xs[0])
    steps = [xs[0] * (last / xs[0]) ** (i / 24) for i in range(25)]
    path = " ".join(f"{at_x(x):.1f},{at_y(x / xs[0]):.1f}" for x in steps)
    ET.SubElement(svg, "polyline", {"points": path, "class": "proportional"})


def _draw_line(
    svg: ET.Element, line: Line, at_x: Callable[[float], float], at_y: Callable[[float], float],
    words: Callable[[float], str], taken: list[tuple[float, float]],
) -> None:  # fmt: skip
    """`taken` holds where words stand already, and grows: a mark that finds no room keeps its ring alone."""
    group = ET.SubElement(svg, "g", {"class": line.style})
    points = sorted(line.points)
    if len(points) > 1:
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
        ET.SubElement(group, "polyline", {"points": path, "class": "line"})
    for x, y in points:
        if len(points) <= 24 or x in line.marked:
            marker = _marker(group, at_x(x), at_y(y), line.style)
            _child(marker, "title", f"{line.name}: {x:g} → {words(y)}")
        if x in line.marked:
            ring = {"cx": f"{at_x(x):.1f}", "cy": f"{at_y(y):.1f}", "r": "8", "class": "ring"}
            ET.SubElement(group, "circle", ring)
            _label_mark(group, at_x(x), at_y(y), words(y), taken)


def _label_mark(group: ET.Element, x: float, y: float, words: str, taken: list[tuple[float, float]]) -> None:
    """Above the mark, or else below it, or else not at all: the table has it."""
    for middle in (y - 17, y + 20):
        if all(abs(x - other_x) > 44 or abs(middle - other_y) > 16 for other_x, other_y in taken):
            taken.append((x, middle))
            _text(group, x, middle + 4, words, "value mid")
            return


_CORNERS: dict[int, list[tuple[float, float]]] = {
    1: [(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)],
    2: [(0, -5), (5, 0), (0, 5), (-5, 0)],
    3: [(0, -4.8), (4.8, 3.8), (-4.8, 3.8)],
}


def _marker(parent: ET.Element, x: float, y: float, style: str) -> ET.Element:
    """A circle, square, diamond or triangle, so that lines can be told apart without colour."""
    shape = int(style[1:]) % 4 if style[1:].isdigit() else 0
    if shape == 0:
        return ET.SubElement(parent, "circle", {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "4", "class": "dot"})
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in _CORNERS[shape])
    return ET.SubElement(parent, "polygon", {"points": points, "class": "dot"})


def swatch(style: str, *, line: bool) -> Markup:
    """The key of one series for a legend: decoration, hidden from screen readers."""
    width = 24 if line else 12
    svg = ET.Element("svg", {"class": f"swatch {style}", "viewBox": f"0 0 {width} 12", "aria-hidden": "true"})
    svg.set("width", str(width))
    if style == "proportional":
        ET.SubElement(svg, "polyline", {"points": "0,6 24,6", "class": style})
    elif line:
        ET.SubElement(svg, "polyline", {"points": "0,6 24,6", "class": "line"})
        _marker(svg, 12, 6, style)
    else:
        _rect(svg, 0, 0, 12, 12, style)
    return _markup(svg)


def stacked_bars(stacks: Sequence[Stack], ident: str, title: str, desc: str) -> Markup:
    """Horizontal bars of 100 %, with the share written where it fits."""
    width, step = 480.0, 50.0
    svg = _svg(width, step * len(stacks) + 2, ident, title, desc)
    for i, stack in enumerate(stacks):
        y = i * step
        _text(svg, 0, y + 13, stack.label, "label", limit=58)
        x, total = 0.0, sum(share for _, share in stack.parts) or 1.0
        for style, share in stack.parts:
            part = share / total * width
            _rect(svg, x, y + 19, max(0.0, part - 1), 20, f"part {style}")
            if part > 34:
                _text(svg, x + part / 2, y + 33.5, f"{share:.0%}", f"inside mid on-{style}")
            x += part
    return _markup(svg)


def bandwidth_bars(bars: Sequence[Bar], limit: float, ident: str, title: str, desc: str) -> Markup:
    """Bars against the copy bandwidth `limit`, each with its percentage of it."""
    width, step, top = 480.0, 50.0, 20.0
    reach = max([limit, *(bar.value for bar in bars)])
    height = top + step * len(bars) + 6
    svg = _svg(width, height, ident, title, desc)
    _text(svg, limit / reach * width - 1, 11, f"copy: {_gb(limit)} GB/s", "tick end")
    for i, bar in enumerate(bars):
        y = top + i * step
        text = _text(svg, 0, y + 13, "", "label")
        _child(text, "tspan", _shorten(bar.name, 30))
        _child(text, "tspan", f"{bar.value / limit:.0%}", {"class": "strong", "dx": "10"})
        _child(text, "tspan", f"{_gb(bar.value)} GB/s", {"class": "name", "dx": "7"})
        _rect(svg, 0, y + 19, width, 16, "track")
        _rect(svg, 0, y + 19, bar.value / reach * width, 16, bar.style)
    _line(svg, limit / reach * width - 1, top - 4, limit / reach * width - 1, height - 4, "one")
    return _markup(svg)


def _gb(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ticks(top: float) -> list[float]:
    """From 0 in round steps to the first at or above `top`."""
    top = top if math.isfinite(top) and top > 0 else 1.0
    scale = 10.0 ** math.floor(math.log10(top / 4))
    step = next(scale * s for s in (1, 2, 2.5, 5, 10) if top / (scale * s) <= 5)
    return [round(i * step, 10) for i in range(math.ceil(top / step - 1e-9) + 1)]


def _spaced(xs: Sequence[float], at: Callable[[float], float], apart: float) -> list[float]:
    """Those of `xs` whose labels don't touch, the first and the last among them."""
    kept = [xs[0]]
    for x in xs[1:-1]:
        if at(x) - at(kept[-1]) >= apart and at(xs[-1]) - at(x) >= apart:
            kept.append(x)
    return kept if len(xs) == 1 else [*kept, xs[-1]]


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _clean(text: str) -> str:
    """Without the characters that XML can't hold."""
    return _CONTROL.sub("�", text)


def _svg(width: float, height: float, ident: str, title: str, desc: str) -> ET.Element:
    svg = ET.Element("svg", {
        "viewBox": f"0 0 {width:g} {height:g}", "role": "img", "class": "chart",
        "aria-labelledby": f"{ident}-title {ident}-desc",
    })  # fmt: skip
    _child(svg, "title", title, {"id": f"{ident}-title"})
    _child(svg, "desc", desc, {"id": f"{ident}-desc"})
    return svg


def _child(parent: ET.Element, tag: str, text: str, attributes: dict[str, str] | None = None) -> ET.Element:
    child = ET.SubElement(parent, tag, attributes or {})
    child.text = _clean(text)
    return child


def _text(parent: ET.Element, x: float, y: float, text: str, style: str, limit: int = 1000) -> ET.Element:
    element = _child(parent, "text", _shorten(text, limit), {"x": f"{x:.1f}", "y": f"{y:.1f}", "class": style})
    if len(text) > limit:
        _child(element, "title", text)
    return element


def _rect(parent: ET.Element, x: float, y: float, width: float, height: float, style: str) -> ET.Element:
    box = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    return ET.SubElement(parent, "rect", {**box, "class": f"bar {style}", "rx": "1.5"})


def _line(parent: ET.Element, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    ET.SubElement(parent, "line", {**ends, "class": style})


def _markup(svg: ET.Element) -> Markup:
    return Markup(ET.tostring(svg, encoding="unicode"))  # the tree escaped every name
