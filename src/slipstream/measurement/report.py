"""The HTML report of a benchmark: one file that needs no network, no script and no second file.

`write_report` turns a result (plain data of results.py) into a `View` of words and charts; report.html.j2 lays it out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from slipstream.measurement import charts
from slipstream.measurement.charts import Axes, Bar, BarGroup, Line, Stack
from slipstream.measurement.results import ALL_KINDS, PLAIN, all_same_text
from slipstream.writing import write_result

Plain = Mapping[str, Any]  # a dataclass of results.py as plain data

HEADLINES = {
    "pays": "Speculation pays",
    "does not pay": "Speculation does not pay",
    "no difference": "No difference within noise",
    "baseline": "Plain decoding only",
    "not compared": "Not compared with plain decoding",
    "broken": "Broken: the text is not the same",
}
PARTS = {"draft": "drafting", "score": "scoring", "rest": "the rest"}
LOW_BANDWIDTH = 0.15  # of copy bandwidth, under which plain decoding probably runs in the wrong place


@dataclass(frozen=True, slots=True)
class Cells:
    """A table: the first column is words, the others are right-aligned figures."""

    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class Key:
    swatch: Markup
    name: str


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    caption: str
    svg: Markup
    narrow_svg: Markup | None = None  # for a phone, where scaling would make it unreadable
    keys: tuple[Key, ...] = ()
    cells: Cells | None = None
    warning: str = ""


def write_report(result: Mapping[str, Any], path: Path) -> None:
    """Writes the report of `result`, over whatever `path` held. Sections that have no data are left out.

    Raises SlipstreamError where it can't be written; what `path` held stays as it was then.
    """
    write_result(path, render(result))


def render(result: Mapping[str, Any]) -> str:
    """The report as HTML."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = files("slipstream.measurement").joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(view(result))


def view(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows."""
    runs: Sequence[Plain] = result["runs"]
    word = result["verdict"]["word"]
    styles = _styles(runs)
    figures = [
        _acceptance(runs, styles), _time_split(runs), _row_cost(result["cost_by_rows"]),
        _draft_length(result["speedup_by_length"], styles), _bandwidth(runs, styles, result["machine"]),
    ]  # fmt: skip
    return {
        "result": result,
        "headline": HEADLINES.get(word, word.capitalize()),
        "tone": {"pays": "good", "broken": "bad", "does not pay": "poor"}.get(word, "even"),
        "top": _top(runs, word),
        "same_text": _same_text(runs),
        "tags": [tag for tag in ("synthetic", "partial") if result[tag]],
        "provenance": _provenance(result),
        "speedups": _speedups(runs, styles),
        "drafters": _verdict_rows(runs),
        "figures": [figure for figure in figures if figure],
        "settings": [(name, _words(value)) for name, value in result["settings"].items()],
        "hardware": _hardware(result["machine"]),
        "versions": list(result["machine"]["versions"].items()),
        "all_kinds": ALL_KINDS,
    }


def _same_text(runs: Sequence[Plain]) -> dict[str, str] | None:
    """Whether the texts are those of plain decoding, in words; None where nothing ran."""
    if not runs:
        return None
    return {
        True: {"word": "yes", "why": "to plain decoding, on every prompt"},
        False: {"word": "no", "why": "a run differs from plain decoding"},
        None: {"word": "not comparable", "why": "acceptance was forced"},
    }[all_same_text(run["same_text"] for run in runs)]


# What the figures are drawn from


def _finite(*values: Any) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def _styles(runs: Sequence[Plain]) -> dict[str, str]:
    """A class for each drafter, in the order of the result."""
    drafters = [name for name in dict.fromkeys(run["drafter"] for run in runs) if name != PLAIN]
    return {PLAIN: "plain"} | {name: f"s{i % charts.NUM_STYLES}" for i, name in enumerate(drafters)}


def _summaries(runs: Sequence[Plain]) -> tuple[str, list[Plain]]:
    """One run a drafter, all of the same kind: `all`, or the kind that most drafters ran."""
    kinds = [run["kind"] for run in runs]
    kind = ALL_KINDS if ALL_KINDS in kinds else max(kinds, key=kinds.count, default=ALL_KINDS)
    return kind, [run for run in runs if run["kind"] == kind]


def _kind_name(kind: str) -> str:
    return "all kinds" if kind == ALL_KINDS else kind


def _drafter_name(drafter: str) -> str:
    return "plain decoding" if drafter == PLAIN else drafter


def _top(runs: Sequence[Plain], word: str) -> dict[str, Any] | None:
    """The run that the verdict speaks of: of those with its word, the fastest."""
    kind, summaries = _summaries(runs)
    drafted = [run for run in summaries if run["drafter"] != PLAIN and _finite(run["speedup"]["value"])]
    chosen = [run for run in drafted if run["verdict"]["word"] == word] or drafted
    if not chosen:
        return None
    run = max(chosen, key=lambda run: float(run["speedup"]["value"]))
    spread = _range(run["speedup"])
    return {
        "run": run,
        "kind": _kind_name(kind),
        "plain": _plain_speed(runs, kind),
        "range": "no interval: measured once" if spread == "–" else f"{spread}, 95 % interval",
    }


def _plain_speed(runs: Sequence[Plain], kind: str) -> str:
    speeds = [run["tokens_per_s"] for run in runs if run["drafter"] == PLAIN and run["kind"] == kind]
    return _number(speeds[0], 1) if speeds else "–"


def _verdict_rows(runs: Sequence[Plain]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Drafters in order, each with its rows; plain decoding only where nothing else ran."""
    drafters = [name for name in _styles(runs) if name != PLAIN] or [PLAIN]
    rows = []
    for drafter in drafters:
        own = sorted((run for run in runs if run["drafter"] == drafter), key=lambda run: run["kind"] != ALL_KINDS)
        if own:
            rows.append((_drafter_name(drafter), [_verdict_row(run, runs) for run in own]))
    return rows


def _verdict_row(run: Plain, runs: Sequence[Plain]) -> dict[str, Any]:
    speedup = run["speedup"]
    return {
        "kind": _kind_name(run["kind"]),
        "total": run["kind"] == ALL_KINDS,
        "word": run["verdict"]["word"],
        "why": run["verdict"]["why"],
        "same_text": run["same_text"],
        "figures": [
            _plain_speed(runs, run["kind"]), _number(run["tokens_per_s"], 1), f"{_number(speedup['value'], 2)}×",
            _range(speedup), _percent(run["acceptance_rate"]),
            _number(run["mean_accepted_length"], 2), f"{run['target_forwards']:,}", f"{run['num_tokens']:,}",
        ],
    }  # fmt: skip


# The figures


def _speedups(runs: Sequence[Plain], styles: Mapping[str, str]) -> Figure | None:
    kinds = sorted(dict.fromkeys(run["kind"] for run in runs), key=lambda kind: kind != ALL_KINDS)
    groups = [BarGroup(_kind_name(kind), _speedup_bars(runs, kind, styles)) for kind in kinds]
    groups = [group for group in groups if group.bars]
    if not groups:
        return None
    said = "; ".join(
        f"{group.label}: " + ", ".join(f"{bar.name} {bar.value:.2f}" for bar in group.bars) for group in groups
    )
    drafters = [name for name in styles if name != PLAIN]
    return Figure(
        title="Speed-up by kind of text",
        caption="Speculative over plain tokens/s on the same prompts; the line at 1× is plain decoding, whiskers are "
        "95 % intervals. Faint bars are not faster beyond noise.",
        svg=charts.speedup_bars(groups, 960, "speedup", said),
        narrow_svg=charts.speedup_bars(groups, 400, "speedup-narrow", said),
        keys=_keys(drafters, styles, line=False) if len(drafters) > 1 else (),
    )


def _speedup_bars(runs: Sequence[Plain], kind: str, styles: Mapping[str, str]) -> list[Bar]:
    bars = []
    for run in runs:
        value, low, high = (run["speedup"][part] for part in ("value", "low", "high"))
        if run["kind"] == kind and run["drafter"] != PLAIN and _finite(value, low, high):
            flag = "≠ text" if run["same_text"] is False else ""
            bars.append(Bar(run["drafter"], value, low, high, styles[run["drafter"]], low <= 1.0, flag))
    return bars


def _acceptance(runs: Sequence[Plain], styles: Mapping[str, str]) -> Figure | None:
    kind, summaries = _summaries(runs)
    lines = [
        Line(run["drafter"], list(enumerate(map(float, run["accepted_by_position"]), 1)), styles[run["drafter"]])
        for run in summaries
        if run["accepted_by_position"] and _finite(*run["accepted_by_position"])
    ]
    if not lines:
        return None
    depth = max(len(line.points) for line in lines)
    rows = [
        [str(position), *(_percent(dict(line.points).get(position)) for line in lines)]
        for position in range(1, depth + 1)
    ]
    return Figure(
        title="Acceptance by position",
        caption=f"Of the rounds that drafted this deep, the share accepted this deep ({_kind_name(kind)}).",
        svg=charts.line_chart(
            lines, Axes("position in the draft", "{:.0%}".format, y_top=1.0), "acceptance", "Acceptance by position",
            "; ".join(f"{line.name}: {line.points[0][1]:.0%} at the first position" for line in lines),
        ),
        keys=_keys([line.name for line in lines], styles, line=True),
        cells=Cells(["position", *(line.name for line in lines)], rows),
    )  # fmt: skip


def _time_split(runs: Sequence[Plain]) -> Figure | None:
    kind, summaries = _summaries(runs)
    shares = {run["drafter"]: [run[f"{part}_share"] for part in PARTS] for run in summaries}
    shares = {name: parts for name, parts in shares.items() if _finite(*parts) and sum(parts) > 0}
    if not shares:
        return None
    stacks = [Stack(_drafter_name(name), list(zip(PARTS, parts, strict=True))) for name, parts in shares.items()]
    rows = [
        [_drafter_name(run["drafter"]), *(_percent(run[f"{part}_share"]) for part in PARTS),
         f"{_number(run['theoretical_speedup'], 2)}×", _percent(run["of_theoretical"]),
         _seconds(run["ttft_s"]), _seconds(run["end_to_end_s"])]
        for run in summaries
    ]  # fmt: skip
    return Figure(
        title="Where the time goes",
        caption=f"Of the time after the first token ({_kind_name(kind)}).",
        svg=charts.stacked_bars(
            stacks, "time", "Time split into drafting, scoring and the rest",
            "; ".join(f"{stack.label}: {_part_words(stack)}" for stack in stacks),
        ),
        keys=tuple(Key(charts.swatch(part, line=False), name) for part, name in PARTS.items()),
        cells=Cells(["drafter", *PARTS.values(), "theoretical", "reached", "first token", "whole answer"], rows),
    )  # fmt: skip


def _part_words(stack: Stack) -> str:
    return ", ".join(f"{PARTS[part]} {share:.0%}" for part, share in stack.parts)


def _row_cost(costs: Sequence[Plain]) -> Figure | None:
    costs = [cost for cost in costs if cost["rows"] > 0 and _finite(cost["over_one"])]
    if not costs:
        return None
    points = [(float(cost["rows"]), float(cost["over_one"])) for cost in costs]
    last = costs[-1]
    return Figure(
        title="What one forward costs",
        caption="Seconds of a forward of n rows over those of one row. The flatter, the more speculation can gain.",
        svg=charts.line_chart(
            [Line("cost", points, "s0", frozenset({points[-1][0]}) if len(points) > 1 else frozenset())],
            Axes("rows in one forward", lambda value: f"{value:.3g}×", y_top=2.0, log2_x=True, proportional=True),
            "cost", "Cost of a forward by rows",
            f"{last['rows']} rows cost {last['over_one']:.2f} times one row",
        ),
        keys=(Key(charts.swatch("s0", line=True), "n rows in one forward"),
              Key(charts.swatch("proportional", line=True), "n forwards of one row")),
        cells=Cells(
            ["rows", "time", "over one row"],
            [[str(cost["rows"]), _seconds(cost["seconds"]), f"{cost['over_one']:.2f}×"] for cost in costs],
        ),
    )  # fmt: skip


def _draft_length(found: Sequence[Plain], styles: Mapping[str, str]) -> Figure | None:
    found = [point for point in found if _finite(point["speedup"])]
    if not found:
        return None
    lines = []
    for drafter in dict.fromkeys(point["drafter"] for point in found):
        own = [point for point in found if point["drafter"] == drafter]
        chosen = frozenset(float(point["length"]) for point in own if point["chosen"])
        points = [(float(point["length"]), float(point["speedup"])) for point in own]
        lines.append(Line(drafter, points, styles.get(drafter, "s0"), chosen))
    said = [f"{p['drafter']}: {p['speedup']:.2f} at the chosen length {p['length']}" for p in found if p["chosen"]]
    return Figure(
        title="Speed-up by draft length",
        caption="At fixed draft lengths. A ring marks the length that was chosen.",
        svg=charts.line_chart(
            lines, Axes("draft length", lambda value: f"{value:.3g}×", y_top=1.2, guide=(1.0, "plain decoding")),
            "length", "Speed-up by draft length", "; ".join(said) or "no length was chosen",
        ),
        keys=_keys([line.name for line in lines], {line.name: line.style for line in lines}, line=True),
        cells=Cells(
            ["drafter", "length", "speed-up", "chosen"],
            [[p["drafter"], str(p["length"]), f"{p['speedup']:.2f}×", "chosen" if p["chosen"] else ""] for p in found],
        ),
    )  # fmt: skip


def _bandwidth(runs: Sequence[Plain], styles: Mapping[str, str], machine: Plain) -> Figure | None:
    kind, summaries = _summaries(runs)
    limit = machine["copy_gb_per_s"]
    bars = [
        Bar(_drafter_name(run["drafter"]), run["read_gb_per_s"], 0, 0, styles[run["drafter"]])
        for run in summaries
        if _finite(run["read_gb_per_s"]) and run["read_gb_per_s"] > 0
    ]
    if not bars or not _finite(limit) or limit <= 0:
        return None
    reached = max(bar.value for bar in bars) / limit
    return Figure(
        title="Memory bandwidth reached",
        caption=f"GB of weights that the forwards read a second, against a large copy on {machine['device']} "
        f"({_kind_name(kind)}). Plain decoding of a large model should come close to it.",
        svg=charts.bandwidth_bars(
            bars, limit, "bandwidth", "Achieved bandwidth against copy bandwidth",
            "; ".join(f"{bar.name}: {bar.value:.1f} of {limit:.1f} GB/s" for bar in bars),
        ),
        cells=Cells(
            ["drafter", "read", "copy", "reached"],
            [[b.name, f"{b.value:.1f} GB/s", f"{limit:.1f} GB/s", f"{b.value / limit:.0%}"] for b in bars],
        ),
        warning=f"At most {reached:.0%} of the copy bandwidth: the time goes elsewhere. Check that the model is where "
        f"it should be (it ran on {machine['device']})." if reached < LOW_BANDWIDTH else "",
    )  # fmt: skip


def _keys(names: Sequence[str], styles: Mapping[str, str], *, line: bool) -> tuple[Key, ...]:
    return tuple(Key(charts.swatch(styles[name], line=line), _drafter_name(name)) for name in names)


# Words


def _provenance(result: Mapping[str, Any]) -> str:
    """What every figure must carry: model, device, settings, seed."""
    settings = result["settings"]
    parts = [_words(settings["model"])] if settings.get("model") else []
    if settings.get("draft"):
        parts.append(f"draft {_words(settings['draft'])}")
    parts.append(str(result["machine"]["device"]))
    if "temperature" in settings:
        parts.append("greedy" if settings["temperature"] == 0 else f"temperature {_words(settings['temperature'])}")
    parts += [
        f"{name.replace('_', ' ')} {_words(settings[name])}" for name in ("max_tokens", "seed") if name in settings
    ]
    return " · ".join(parts)


def _hardware(machine: Plain) -> list[tuple[str, str]]:
    rows = [
        ("ran on", machine["device"]),
        ("processor", machine["processor"]),
        ("cores", str(machine["cores"])),
        ("memory", f"{_number(machine['memory_gb'], 0)} GB"),
        ("GPUs", ", ".join(machine["gpus"]) or "none"),
        ("copy bandwidth", f"{_number(machine['copy_gb_per_s'], 1)} GB/s"),
    ]
    return [(name, value) for name, value in rows if value]


def _words(value: Any) -> str:
    """A setting in words."""
    if value is None or value == [] or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_words(item) for item in value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else str(value)


def _number(value: Any, places: int) -> str:
    return f"{value:,.{places}f}" if _finite(value) else "–"


def _range(interval: Plain) -> str:
    """Empty-handed where there was one measurement only, since it has no spread."""
    low, high = interval["low"], interval["high"]
    return f"{low:.2f}–{high:.2f}" if _finite(low, high) and high > low else "–"


def _percent(value: Any) -> str:
    return f"{value:.0%}" if _finite(value) else "–"


def _seconds(value: Any) -> str:
    if not _finite(value):
        return "–"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"
