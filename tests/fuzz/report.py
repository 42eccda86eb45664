"""Report: what a run has found so far, by category, and each failure as a line that can be replayed."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from fuzz.run_case import CaseResult

_MAX_PRINTED = 300  # characters of a failure's detail


@dataclass
class Category:
    """Failures of one check in one scenario. `seed` is that of the first."""

    count: int
    num_cases: int
    seed: int
    detail: str
    description: str


@dataclass
class Report:
    """Counts cases and generations (every submitted request is one) of one backend."""

    backend: str
    first_seed: int
    report_every_s: float = 10.0
    only: str = ""  # options that the cases depend on, for replays
    num_cases: int = 0
    num_generations: int = 0
    num_failed_cases: int = 0
    categories: dict[tuple[str, str], Category] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    _reported: float = field(default_factory=time.monotonic)

    def add(self, result: CaseResult) -> None:
        """Counts a case. Its failures go to stderr at once."""
        self.num_cases += 1
        self.num_generations += result.num_generations
        self.num_failed_cases += bool(result.failures)
        seen = set()
        for failure in result.failures:
            key = (result.scenario, failure.check)
            entry = self.categories.setdefault(key, Category(0, 0, result.seed, failure.detail, result.description))
            entry.count += 1
            entry.num_cases += key not in seen
            seen.add(key)
            self.failures.append({"seed": result.seed, "scenario": result.scenario, "check": failure.check,
                                  "detail": failure.detail, "replay": self._replay(result.seed)})  # fmt: skip
            print(
                f"FAIL {failure.check} | {result.scenario} | {failure.detail[:_MAX_PRINTED]!r} | "
                f"replay: {self._replay(result.seed)}", file=sys.stderr,
            )  # fmt: skip
        if time.monotonic() - self._reported > self.report_every_s:
            self._reported = time.monotonic()
            print(self.progress(), file=sys.stderr, flush=True)

    def progress(self) -> str:
        seconds = time.monotonic() - self.started
        return (
            f"{self.backend}: {self.num_cases} cases, {self.num_generations} generations, "
            f"{self.num_generations / max(seconds, 1e-9):.0f} generations/s, {self.num_failed_cases} failed cases, "
            f"{seconds:.0f} s"
        )

    def table(self) -> str:
        """The result: totals and a line for each category."""
        lines = [self.progress()]
        for (scenario, check), entry in sorted(self.categories.items(), key=lambda item: -item[1].num_cases):
            lines.append(f"  {entry.num_cases:5} cases  {scenario:12} {check}  (seed {entry.seed})")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "first_seed": self.first_seed,
            "cases": self.num_cases,
            "generations": self.num_generations,
            "failed_cases": self.num_failed_cases,
            "seconds": round(time.monotonic() - self.started, 1),
            "categories": [
                {"scenario": scenario, "check": check, "cases": c.num_cases, "failures": c.count, "seed": c.seed,
                 "detail": c.detail, "case": c.description, "replay": self._replay(c.seed)}
                for (scenario, check), c in self.categories.items()
            ],
            "failures": self.failures,
        }  # fmt: skip

    def _replay(self, seed: int) -> str:
        return f"python -m fuzz --backend {self.backend}{self.only} --only {seed}"
