"""Damaged model files, configurations and logs: what do doctor and generate say?

    python tools/fuzz_files.py [--count 2000] [--seed 18] [--kinds gguf,log] [--jobs 2] [--keep FOLDER] [--json]
    python tools/fuzz_files.py --only 12,34 --show            # these cases again, with what the commands print

Starts from small sound models, configurations and known logs, damages them (file_damage/), and runs the commands on
them, each in a forked process with 5 s of processor time, 10 s and 500 MB of address space more than it starts with.
No command may show a traceback, crash, hang or run out of memory; exit codes are those documented; and what generate
refuses the doctor refuses, and the reverse. Seed and number decide a case. Exit code 1: something did not hold;
2: not all cases could be run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from file_damage.cases import KINDS, Case, SoundModels, make_case, numbers, sound_cases
from file_damage.judge import Judged, allowance_key, judge
from file_damage.run_command import Allowance, Outcome, import_like, load_factor, prepare, run_command

_FIRST_RUN = Allowance(120, 120)  # kernels may have to be compiled


class SoundFilesRefusedError(Exception):
    """A command does not accept files in which nothing is damaged: there is nothing to compare with."""


def main() -> int:
    options = _options()
    kinds = tuple(options.kinds.split(","))
    chosen = [int(number) for number in options.only.split(",")] if options.only else numbers(options.count, kinds)
    root = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
    started = time.monotonic()
    try:
        prepare()
        models = SoundModels.write(root / "sound-models")
        run = Run(options.seed, root, models, _measure_sound(root, models), show=options.show)
        judged = _run_all(chosen, run, options.jobs)
        if options.keep:
            _keep(judged, root, options.keep, everything=options.show)
    except SoundFilesRefusedError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(root, ignore_errors=True)
    summary = _summary(judged, options.seed, time.monotonic() - started)
    print(json.dumps(summary, indent=2)) if options.json else _print(summary, judged)
    return 2 if len(judged) < len(chosen) else 1 if summary["violations"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of " + ",".join(KINDS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="run these cases alone: numbers with commas")
    parser.add_argument("--show", action="store_true", help="show what the commands print, and keep all cases")
    parser.add_argument("--keep", type=Path, help="keep the files of cases with a violation here")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.kinds.split(",")) - set(KINDS):
        parser.error(f"unknown kinds: {', '.join(sorted(unknown))}; known are {', '.join(KINDS)}")
    return options


# -- running ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What all cases share. `show` prints what the commands print."""

    seed: int
    root: Path
    models: SoundModels
    allowances: dict[str, Allowance]
    show: bool


def _run_all(chosen: list[int], run: Run, jobs: int) -> list[Judged]:
    """Each job is a process that makes every `jobs`-th case; results come back as lines of a file."""
    jobs = max(1, min(jobs, len(chosen)))
    results = [run.root / f"results-{job}" for job in range(jobs)]
    workers = []
    for job in range(jobs):
        pid = os.fork()
        if pid == 0:
            _work(chosen[job::jobs], run, results[job])
        workers.append(pid)
    failed = [pid for pid in workers if os.waitpid(pid, 0)[1] != 0]
    if failed:
        print("a worker process failed, and the rest of its cases was not run", file=sys.stderr)
    lines = [line for file in results for line in file.read_text().splitlines()]
    return sorted((Judged.from_dict(json.loads(line)) for line in lines), key=lambda each: each.number)


def _measure_sound(root: Path, models: SoundModels) -> dict[str, Allowance]:
    """What each command costs on sound files. Raises SoundFilesRefusedError if one is refused."""
    allowances = {}
    for case in sound_cases(root, models):
        for command in case.commands:
            import_like(command.arguments, root)
            outcome = run_command(command.arguments, root, _FIRST_RUN)
            if outcome.code != 0:
                said = outcome.error or outcome.stderr or outcome.stdout
                raise SoundFilesRefusedError(f"refused without damage: {' '.join(command.arguments)}\n{said}")
            allowances[allowance_key(case, command)] = Allowance(outcome.cpu_s, outcome.wall_s)
    return allowances


def _work(chosen: list[int], run: Run, results: Path) -> None:
    """Never returns."""
    code = 1
    try:
        with results.open("w") as out:
            for number in chosen:
                case = make_case(number, run.seed, run.root, run.models)
                judged = _run_case(case, run)
                out.write(json.dumps(judged.to_dict()) + "\n")
                out.flush()
                if not judged.violations and not run.show:
                    shutil.rmtree(case.folder, ignore_errors=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run_case(case: Case, run: Run) -> Judged:
    outcomes = []
    for command in case.commands:
        allowance = run.allowances.get(allowance_key(case, command), Allowance())
        outcome = run_command(command.arguments, case.folder, allowance, load_factor())
        outcomes.append((command, outcome))
        if run.show:
            _show(command.arguments, outcome)
    return judge(case, outcomes, run.allowances)


def _show(arguments: tuple[str, ...], outcome: Outcome) -> None:
    print(f"$ slipstream {' '.join(arguments)}", file=sys.stderr)
    error = json.loads(outcome.error)["traceback"] if outcome.error else ""
    print(outcome.stdout[-3000:], outcome.stderr[-3000:], error, sep="", file=sys.stderr)
    ended = f"exit code {outcome.code}" if outcome.code is not None else f"stopped (signal {outcome.signal})"
    print(f"# {ended}, {outcome.cpu_s:.2f} s, {outcome.peak_bytes >> 20} MiB\n", file=sys.stderr, flush=True)


def _keep(judged: list[Judged], root: Path, keep: Path, everything: bool) -> None:
    """Files of cases with a violation; pipes and devices can't be copied and are moved."""
    keep.mkdir(parents=True, exist_ok=True)
    for each in judged:
        source = Path(each.folder)
        if source.exists() and (each.violations or everything):
            shutil.rmtree(keep / source.name, ignore_errors=True)
            if root.stat().st_dev == keep.stat().st_dev:
                source.rename(keep / source.name)
                each.folder = str(keep / source.name)


# -- reporting --------------------------------------------------------------------------------------------------------


def _summary(judged: list[Judged], seed: int, seconds: float) -> dict[str, Any]:
    causes: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for each in judged:
        for key in dict.fromkeys((violation.rule, violation.cause) for violation in each.violations):
            causes[key].append(each)
    groups = [
        {"rule": rule, "cause": cause, "count": len(cases), "numbers": [each.number for each in cases],
        "example": _example(rule, cause, cases[0])}
        for (rule, cause), cases in causes.items()
    ]  # fmt: skip
    return {
        "seed": seed,
        "cases": len(judged),
        "seconds": round(seconds, 1),
        "peak_bytes": max((each.peak_bytes for each in judged), default=0),
        "longest_cpu_s": max((each.cpu_s for each in judged), default=0.0),
        "outcomes": {
            kind: dict(Counter(each.outcome for each in judged if each.kind == kind).most_common()) for kind in KINDS
        },
        "violations": sorted(groups, key=lambda group: -group["count"]),
    }


def _example(rule: str, cause: str, case: Judged) -> dict[str, Any]:
    found = next(each for each in case.violations if (each.rule, each.cause) == (rule, cause))
    return {
        "number": case.number,
        "what": case.what,
        "command": found.command,
        "message": found.message,
        "folder": case.folder,
    }


def _print(summary: dict[str, Any], judged: list[Judged]) -> None:
    kinds = [kind for kind in KINDS if summary["outcomes"][kind]]
    names = list(dict.fromkeys(name for kind in kinds for name in summary["outcomes"][kind]))
    print(f"{'':20}" + "".join(f"{kind:>13}" for kind in kinds))
    for name in names:
        print(f"{name:20}" + "".join(f"{summary['outcomes'][kind].get(name, 0):13}" for kind in kinds))
    broken = sum(1 for each in judged if each.violations)
    print(f"\n{summary['cases']} cases, {broken} with a violation, seed {summary['seed']}, {summary['seconds']} s")
    print(f"at most {summary['longest_cpu_s']} s of processor time, {summary['peak_bytes'] >> 20} MiB in a command")
    for group in summary["violations"]:
        example = group["example"]
        print(f"\n{group['count']} x {group['rule']}: {group['cause']}\n  case {example['number']}: {example['what']}\n"
              f"  {example['command']}\n  {example['message']}\n"
              f"  again: python tools/fuzz_files.py --seed {summary['seed']} --only {example['number']}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
