"""The fuzz as a command: `PYTHONPATH=tests:tools:src python -m fuzz --seconds 60 --backend fake,torch`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path

_HELP = """Compares the engine with plain decoding on random cases.
Exit code 0: nothing found, 1: a failure, 2: bad use.

Other commands: `stress` (many threads on one engine) and `mutations` (deliberate bugs that the fuzz has to find)."""


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["worker"]:
        from fuzz import worker

        return worker.main(arguments[1:])
    if arguments[:1] == ["stress"]:
        from fuzz import stress

        return stress.main(arguments[1:])
    if arguments[:1] == ["mutations"]:
        return _mutations(arguments[1:])
    return _cases(arguments)


def _cases(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    backends = _available(options.backend.split(","))
    if not backends:
        return 2 if options.strict else 0
    reports = [_one_backend(backend, options, options.seconds / len(backends)) for backend in backends]
    for report in reports:
        print(report["table"])
    if options.json:
        contents = {"runs": [report["json"] for report in reports]}
        Path(options.json).write_text(json.dumps(contents, indent=1) + "\n")
    return int(any(report["json"]["failed_cases"] for report in reports))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuzz", description=_HELP, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on, over all backends (60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case; the next one has the next (0)")
    parser.add_argument("--cases", type=int, help="stop after so many cases of each backend")
    parser.add_argument("--only", type=int, metavar="SEED", help="replay this case and no other")
    parser.add_argument("--backend", default="fake", help="fake, torch, cuda, llamacpp, or several with commas (fake)")
    parser.add_argument("--scenario", action="append", default=[],
                        help="only these: turns, meddling, signals, threads, 'two engines'")  # fmt: skip
    parser.add_argument("--mutation", help="put a deliberate bug in first; `mutations` lists them")
    parser.add_argument("--json", metavar="FILE", help="write the result there")
    parser.add_argument("--report-every", type=float, default=10.0, metavar="S", help="seconds between lines (10)")
    parser.add_argument("--strict", action="store_true", help="exit with 2 where no backend can be tested here")
    return parser


def _available(backends: list[str]) -> list[str]:
    from fuzz.worlds import BACKENDS, why_missing

    for backend in backends:
        if backend not in BACKENDS:
            print(f"unknown backend {backend!r}; expected {', '.join(BACKENDS)}", file=sys.stderr)
            raise SystemExit(2)
        if reason := why_missing(backend):
            print(f"{backend} skipped: {reason}", file=sys.stderr)
    return [backend for backend in backends if why_missing(backend) is None]


def _one_backend(backend: str, options: argparse.Namespace, seconds: float) -> dict[str, object]:
    from fuzz.report import Report
    from fuzz.supervisor import WorkerOptions, run_cases

    first, count = (options.seed, options.cases) if options.only is None else (options.only, 1)
    only = "".join(f" --scenario {shlex.quote(scenario)}" for scenario in options.scenario)
    only += f" --mutation {shlex.quote(options.mutation)}" if options.mutation else ""
    report = Report(backend, first, options.report_every, only)
    with tempfile.TemporaryDirectory() as folder:
        worker = WorkerOptions(backend, tuple(options.scenario), options.mutation, Path(folder))
        for result in run_cases(worker, first, count, seconds if options.only is None else None):
            report.add(result)
    return {"table": report.table(), "json": report.to_dict()}


def _mutations(arguments: list[str]) -> int:
    """Looks for every deliberate bug. Exit code 1 where one is not found."""
    parser = argparse.ArgumentParser(prog="fuzz mutations", description="Deliberate bugs that the fuzz has to find.")
    parser.add_argument("--cases", type=int, default=150, help="cases that may be needed to find one (150)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    from fuzz.mutation_check import MutationCheck
    from fuzz.mutations import MUTATIONS
    from fuzz.worker import be_quiet
    from fuzz.worlds import make_worlds

    be_quiet()
    checks: dict[str, MutationCheck] = {}
    missed = 0
    for mutation in MUTATIONS.values():
        if mutation.backend not in checks:
            checks[mutation.backend] = MutationCheck(make_worlds(mutation.backend), options.cases, options.seed)
        finding = checks[mutation.backend].find(mutation)
        missed += finding is None
        found = f"found after {finding.num_cases} cases: {finding.check}" if finding else "NOT FOUND"
        print(f"{mutation.backend:6} {mutation.name}: {found}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
