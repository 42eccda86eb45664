"""The course of a training as one HTML page: loss, and how far drafts are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from slipstream.measurement.charts import Line, LineChart, Point

_COLOURS = ("#1668b8", "#c2570c", "#2e7d32", "#7b3fa0", "#8a6d00", "#5f6b7a")
_MARGIN = 44  # pixels for the labels of the axes
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 14px system-ui, sans-serif; margin: 2em; color: #222 }} figure {{ margin: 2em 0 }}
svg {{ overflow: visible }} text {{ font-size: 11px; fill: #555 }}</style></head>
<body><h1>{title}</h1>{charts}</body></html>
"""


def page(title: str, records: Sequence[Mapping[str, Any]]) -> str:
    """`records` are the lines of a training log. Charts without a point are left out."""
    checks = [record for record in records if "accepted_length" in record]
    steps = max((len(check["reached"]) for check in checks), default=0)
    shares = [_line(f"{k + 1}", checks, lambda check, k=k: check["reached"][k], k) for k in range(steps)]
    losses = [
        _line("training", [record for record in records if "loss" in record], lambda record: record["loss"], 0),
        _line("held back", checks, lambda check: check["held_back_loss"], 1),
    ]
    length = [_line("draft of 4 tokens", checks, lambda check: check["accepted_length"], 0)]
    charts = [
        LineChart("Loss", "", losses, "step", "{:.3g}".format, y_top=1.0),
        LineChart("Drafts right up to each position", "", shares, "step", "{:.0%}".format, y_top=1.0),
        LineChart("Mean accepted length", "", length, "step", "{:.3g}".format, y_top=2.0),
    ]
    drawn = [_figure(chart) for chart in charts if any(line.points for line in chart.lines)]
    return _PAGE.format(title=escape(title), charts="".join(drawn))


def _line(name: str, records: Sequence[Mapping[str, Any]], value: Any, style: int) -> Line:
    points = [Point(float(r["step"]), float(value(r)), words=f"{value(r):.3g}") for r in records]
    return Line(name, points, _COLOURS[style % len(_COLOURS)])


def _figure(chart: LineChart) -> str:
    bottom = chart.height + 16
    parts = [f'<text x="-6" y="{chart.at_y(y) + 4}" text-anchor="end">{chart.y_words(y)}</text>' for y in chart.y_ticks]
    parts += [
        f'<line x1="0" x2="{chart.width}" y1="{chart.at_y(y)}" y2="{chart.at_y(y)}" stroke="#ddd"/>'
        for y in chart.y_ticks
    ]
    parts += [f'<text x="{chart.at_x(x)}" y="{bottom}" text-anchor="middle">{x:g}</text>' for x in _few(chart.xs)]
    for index, line in enumerate(chart.lines):
        parts.append(f'<polyline points="{chart.path(line)}" fill="none" stroke="{line.style}" stroke-width="1.5"/>')
        place = f'x="{chart.width + 8}" y="{14 * index + 10}"'
        parts.append(f'<text {place} style="fill:{line.style}">{escape(line.name)}</text>')
    size = f'width="{chart.width + 4 * _MARGIN}" height="{chart.height + _MARGIN}"'
    box = f'viewBox="{-_MARGIN} -6 {chart.width + 4 * _MARGIN} {chart.height + _MARGIN}"'
    return f"<figure><figcaption>{escape(chart.title)}</figcaption><svg {size} {box}>{''.join(parts)}</svg></figure>"


def _few(xs: Sequence[float]) -> Sequence[float]:
    return xs[:: max(1, -(-len(xs) // 6))]
