"""Runs the comparison, in as many processes as there are cores."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from policy_replay import overrides
from policy_replay.compare import FIXED, STREAMS, Cell, Setting, run, settings
from policy_replay.machines import machines
from policy_replay.summary import read_baseline, summarise, write_baseline
from policy_replay.table import rows, summary_lines

_QUICK_STREAMS = (1, 16)
_QUICK_OF_EACH_KIND = 1
_QUICK_FIXED = (1, 2, 4, 8)
_ALL_OF_A_KIND = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="one answer of each kind, 1 and 16 streams: for CI")
    parser.add_argument("--machines", help="names, separated by commas; all of machines.json otherwise")
    parser.add_argument("--streams", help="numbers, separated by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--kinds", action="store_true", help="a line for every kind of prompt")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--auto-only", action="store_true", help="without fixed lengths and best choices")
    parser.add_argument("--save-baseline", action="store_true", help="make this policy the one to compare with")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a constant of the policy")
    parser.add_argument("--sensitivity", action="store_true", help="every constant of the policy, halved and doubled")


def main(options: argparse.Namespace) -> None:
    if options.sensitivity:
        sensitivity(options)
        return
    form = "quick" if options.quick else "full"
    cells = compare(plan(options), options.jobs)
    if options.save_baseline:
        write_baseline(form, cells)
    baseline = read_baseline(form)
    summary = summarise(cells, baseline)
    if options.json:
        print(json.dumps({"cells": [cell.to_dict() for cell in cells], "summary": summary.to_dict()}))
    else:
        print("\n".join([*rows(cells, baseline, options.kinds), "", *summary_lines(summary)]))


def plan(options: argparse.Namespace) -> list[Setting]:
    names = options.machines.split(",") if options.machines else list(machines())
    unknown = [name for name in names if name not in machines()]
    if unknown:
        raise SystemExit(f"--machines {unknown[0]}: expected some of {', '.join(machines())}")
    streams = [int(n) for n in options.streams.split(",")] if options.streams else None
    if options.quick:
        fixed = () if options.auto_only else _QUICK_FIXED
        return settings(names, streams or _QUICK_STREAMS, _QUICK_OF_EACH_KIND, fixed)
    return settings(names, streams or STREAMS, _ALL_OF_A_KIND, () if options.auto_only else FIXED)


def compare(todo: list[Setting], jobs: int) -> list[Cell]:
    if jobs == 1:
        return [cell for setting in todo for cell in run(setting)]
    with ProcessPoolExecutor(jobs, get_context("fork")) as pool:  # forked: they have the constants that were set here
        return [cell for cells in pool.map(run, todo) for cell in cells]


def sensitivity(options: argparse.Namespace) -> None:
    """A process for each value, since a constant can only be set before it is imported."""
    changes = [(name, value) for name, now in overrides.constants().items() for value in overrides.other_values(now)]
    base = _summary_with(options, None)
    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(lambda change: _summary_with(options, change), changes))
    if options.json:
        print(json.dumps([{"set": name, "to": value, **s} for (name, value), s in zip(changes, found, strict=True)]))
        return
    print(f"{'constant':<50} {'value':>8} {'mean':>8} {'worst':>8} {'below the bound':>16}")
    for (name, value), summary in [(("as it is", float("nan")), base), *zip(changes, found, strict=True)]:
        mean = summary["mean_speedup"] / base["mean_speedup"]
        print(
            f"{name.removeprefix('slipstream.'):<50} {value:>8.4g} {mean:>8.4f} "
            f"{summary['worst_over_plain']:>8.3f} {len(summary['slower_than_plain']):>16}"
        )


def _summary_with(options: argparse.Namespace, change: tuple[str, float] | None) -> dict[str, Any]:
    """Of this same comparison with one constant changed."""
    script = Path(__file__).parents[1] / "policy.py"
    arguments = [sys.executable, str(script), "--json", "--auto-only", "--jobs", "1"]
    arguments += ["--quick"] if options.quick else []
    arguments += ["--machines", options.machines] if options.machines else []
    arguments += ["--streams", options.streams] if options.streams else []
    for text in [*options.set, *([f"{change[0]}={change[1]}"] if change else [])]:
        arguments += ["--set", text]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    summary: dict[str, Any] = json.loads(done.stdout)["summary"]
    return summary
