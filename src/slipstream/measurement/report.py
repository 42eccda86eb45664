"""The HTML report of a benchmark: one file that needs no network, no script and no second file.

`view` picks what is shown of a result (plain data of results.py); report.html.j2 has the words and the layout.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from slipstream.measurement.charts import NUM_STYLES, Line, LineChart, Point, Scale
from slipstream.measurement.results import ALL_KINDS, NOTHING_DRAFTED, PLAIN, PlainData, VerdictWord, text_comparison
from slipstream.writing import write_result

HEADLINES: dict[VerdictWord, str] = {
    "pays": "Speculation pays",
    "does not pay": "Speculation does not pay",
    "no difference": "No difference within noise",
    NOTHING_DRAFTED: "Nothing was drafted: nothing was shown",
    "baseline": "Plain decoding only",
    "not compared": "Not compared with plain decoding",
    "broken": "Broken: the text is not the same",
}
TONES: dict[VerdictWord, str] = {"pays": "good", "broken": "bad", "does not pay": "poor", NOTHING_DRAFTED: "poor"}
SAME_TEXT = {
    "yes": ("yes", "to plain decoding, on every prompt"),
    "no": ("no", "a run differs from plain decoding"),
    "forced": ("not comparable", "acceptance was forced"),
    "nothing drafted": ("not shown", "nothing was drafted"),
}
TAGS = {
    "synthetic": "Random weights or forced acceptance: the speeds are real, the texts and the acceptance are not. "
    "Do not quote these figures as a model's.",
    "partial": "The benchmark was interrupted: this is what it had measured until then.",
}
PARTS = {"draft": "drafting", "score": "scoring", "rest": "the rest"}
LOW_BANDWIDTH = 0.15  # of copy bandwidth, under which plain decoding probably runs in the wrong place
_NOT_XML = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # characters that SVG can't hold


def write_report(result: Mapping[str, Any], path: Path) -> None:
    """Writes the report of `result`, over whatever `path` held. Sections that have no data are left out.

    Raises SlipstreamError where it can't be written; what `path` held stays as it was then.
    """
    write_result(path, render(result))


def render(result: Mapping[str, Any]) -> str:
    """The report as HTML."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    writers = (_name, _show, _seconds, _range, _setting)
    environment.filters |= {writer.__name__.removeprefix("_"): writer for writer in writers}
    source = files("slipstream.measurement").joinpath("report.html.j2").read_text(encoding="utf-8")
    return _NOT_XML.sub("\ufffd", environment.from_string(source).render(view(result)))


def view(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows. A chart without data is empty or None."""
    runs: Sequence[PlainData] = [{"drafted": None} | run for run in result["runs"]]  # older results lack the field
    word, copy_speed = result["verdict"]["word"], result["machine"]["copy_gb_per_s"]
    shown = [run for run in runs if run["drafter"] != PLAIN] or runs
    kind, summaries = _summaries(runs)
    styles = _styles(runs)
    readers = [run for run in summaries if _finite(copy_speed, run["read_gb_per_s"]) and run["read_gb_per_s"] > 0]
    return {
        "result": result,
        "headline": HEADLINES.get(word, word.capitalize()),
        "tones": TONES,
        "tags": {tag: meaning for tag, meaning in TAGS.items() if result[tag]},
        "provenance": _provenance(result),
        "same_text": SAME_TEXT[text_comparison(runs)] if runs else None,
        "top": _top(summaries, word),
        "kind": kind,
        "styles": styles,
        "runs": shown,
        "kinds": sorted(dict.fromkeys(run["kind"] for run in shown), key=lambda kind: kind != ALL_KINDS),
        "plain_speeds": {run["kind"]: run["tokens_per_s"] for run in runs if run["drafter"] == PLAIN},
        "speedup_scale": _speedup_scale([run["speedup"] for run in shown]),
        "parts": PARTS,
        "summaries": summaries,
        "line_charts": [
            _acceptance(summaries, styles),
            _length(result["speedup_by_length"], styles),
            _cost(result["cost_by_rows"]),
        ],
        "readers": readers if copy_speed > 0 else [],
        "read_scale": Scale(max([copy_speed, *(run["read_gb_per_s"] for run in readers)])),
        "low_bandwidth": LOW_BANDWIDTH,
    }


def _styles(runs: Sequence[PlainData]) -> dict[str, str]:
    """A class for each drafter, in the order of the result."""
    drafters = [name for name in dict.fromkeys(run["drafter"] for run in runs) if name != PLAIN]
    return {PLAIN: "plain"} | {name: f"s{i % NUM_STYLES}" for i, name in enumerate(drafters)}


def _summaries(runs: Sequence[PlainData]) -> tuple[str, list[PlainData]]:
    """One run a drafter, all of the same kind: `all`, or the kind that most drafters ran."""
    kinds = [run["kind"] for run in runs]
    kind = ALL_KINDS if ALL_KINDS in kinds else max(kinds, key=kinds.count, default=ALL_KINDS)
    return kind, [run for run in runs if run["kind"] == kind]


def _top(summaries: Sequence[PlainData], word: str) -> PlainData | None:
    """The run that the verdict speaks of: of those with its word, the fastest."""
    others = [run for run in summaries if run["drafter"] != PLAIN and run["drafted"] is not False]
    drafted = [run for run in others if _finite(run["speedup"]["value"])]
    chosen = [run for run in drafted if run["verdict"]["word"] == word] or drafted
    return max(chosen, key=lambda run: float(run["speedup"]["value"]), default=None)


def _speedup_scale(speedups: Sequence[PlainData]) -> Scale:
    """Wide intervals are cut off, so that the bars stay readable."""
    best, highest = (max((s[part] for s in speedups if _finite(s[part])), default=0.0) for part in ("value", "high"))
    return Scale(max(1.2, min(highest, 2 * best)))


def _acceptance(summaries: Sequence[PlainData], styles: Mapping[str, str]) -> LineChart | None:
    lines = [
        Line(run["drafter"], [Point(i, y, f"{y:.0%}") for i, y in enumerate(shares, 1)], styles[run["drafter"]])
        for run in summaries
        if (shares := run["accepted_by_position"]) and _finite(*shares)
    ]
    if not lines:
        return None
    caption = f"Of the rounds that drafted this deep, the share accepted this deep ({_name(summaries[0]['kind'])})."
    return LineChart("Acceptance by position", caption, lines, "position in the draft", "{:.0%}".format, y_top=1.0)


def _length(found: Sequence[PlainData], styles: Mapping[str, str]) -> LineChart | None:
    points: dict[str, list[Point]] = {}
    for at in sorted(found, key=lambda at: int(at["length"])):
        if _finite(at["speedup"]):
            point = Point(at["length"], at["speedup"], f"{at['speedup']:.2f}×", at["chosen"])
            points.setdefault(at["drafter"], []).append(point)
    if not points:
        return None
    lines = [Line(drafter, own, styles.get(drafter, "s0")) for drafter, own in points.items()]
    lengths = [point.x for line in lines for point in line.points]
    lines.append(Line("plain decoding", [Point(min(lengths), 1.0), Point(max(lengths), 1.0)], "reference"))
    caption = "At fixed draft lengths. A ring marks the length that was chosen."
    return LineChart("Speed-up by draft length", caption, lines, "draft length", "{:.3g}×".format, y_top=1.2)


def _cost(costs: Sequence[PlainData]) -> LineChart | None:
    costs = [cost for cost in costs if cost["rows"] > 0 and _finite(cost["over_one"])]
    if not costs:
        return None
    points = [
        Point(at["rows"], at["over_one"], f"{at['over_one']:.2f}×, {_seconds(at['seconds'])}", at is costs[-1])
        for at in costs
    ]
    first, last = points[0].x, points[-1].x
    curve = [first * (last / first) ** (i / 100) for i in range(101)]  # on this axis no straight line
    lines = [
        Line("n rows in one forward", points, "s0"),
        Line("n forwards of one row", [Point(x, x / first) for x in curve], "reference"),
    ]
    title = "What one forward costs"
    caption = "Seconds of a forward of n rows over those of one row. The flatter, the more speculation can gain."
    return LineChart(title, caption, lines, "rows in one forward", "{:.3g}×".format, y_top=2.0, log2_x=True)


def _provenance(result: Mapping[str, Any]) -> str:
    """What every figure must carry: model, device, settings, seed."""
    values = {**result["settings"], "device": result["machine"]["device"]}
    words = []
    for name in ("model", "draft", "device", "temperature", "max_tokens", "seed"):
        label = "" if name in ("model", "device") else f"{name.replace('_', ' ')} "
        if values.get(name) not in (None, ""):
            words.append("greedy" if (name, values[name]) == ("temperature", 0) else label + _setting(values[name]))
    return " · ".join(words)


def _setting(value: Any) -> str:
    if value is None or value == [] or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_setting(item) for item in value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else str(value)


def _name(word: str) -> str:
    """Of a drafter or a kind of text."""
    return {PLAIN: "plain decoding", ALL_KINDS: "all kinds"}.get(word, word)


def _finite(*values: Any) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def _show(value: Any, form: str) -> str:
    return form.format(value) if _finite(value) else "–"


def _seconds(value: Any) -> str:
    if not _finite(value):
        return "–"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"


def _range(interval: PlainData) -> str:
    """Empty where there was one measurement only, since it has no spread."""
    low, high = interval["low"], interval["high"]
    return f"{low:.2f}–{high:.2f}" if _finite(low, high) and high > low else ""
