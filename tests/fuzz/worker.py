"""Worker: runs cases in a process of its own and tells the supervisor about each, one JSON line at a time."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from fuzz.case import Case
from fuzz.garbage import freeze
from fuzz.mutations import MUTATIONS
from fuzz.run_case import run_case
from fuzz.watchdog import hard_limit
from fuzz.worlds import make_worlds

CASE_LIMIT_S = 90.0  # of wall time; then the process ends, and the supervisor starts another one


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


def _announce(case: Case) -> None:
    _say({"made": case.seed, "scenario": case.scenario, "description": case.describe()})


def be_quiet() -> None:
    """The product reports each broken drafter; here nearly all of them are broken."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def main(arguments: list[str]) -> int:
    """Runs cases from `--first` on until it is ended, or until a case hangs: its threads may still be running."""
    parser = argparse.ArgumentParser(prog="fuzz worker")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--scenario", action="append", default=[])
    parser.add_argument("--mutation")
    options = parser.parse_args(arguments)
    be_quiet()
    worlds = make_worlds(options.backend, options.models)
    freeze()
    seed = options.first
    with MUTATIONS[options.mutation].apply() if options.mutation else nullcontext():
        while options.count is None or seed < options.first + options.count:
            _say({"start": seed})
            with hard_limit(CASE_LIMIT_S):
                result = run_case(seed, worlds, tuple(options.scenario), _announce)
            _say({"done": seed, **asdict(result)})
            if any(failure.check.startswith(("hang", "thread does not end")) for failure in result.failures):
                sys.stdout.flush()
                os._exit(0)  # threads that hang would keep the process alive
            seed += 1
    return 0
