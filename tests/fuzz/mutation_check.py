"""Shows that the fuzz finds a mutation: a case that passes on the product as it is and fails with the bug in it."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.mutations import Mutation
from fuzz.run_case import CaseResult, run_case
from fuzz.worlds import Worlds


@dataclass(frozen=True)
class Finding:
    """`num_cases` cases were run with the mutation until the one of `seed` failed."""

    mutation: str
    num_cases: int
    seed: int
    check: str


class MutationCheck:
    """Looks for mutations, case by case. What passes without them is found out once for all of them."""

    def __init__(self, worlds: Worlds, max_cases: int, first_seed: int = 0) -> None:
        self._worlds, self._max_cases, self._first = worlds, max_cases, first_seed
        self._passes: dict[tuple[int, tuple[str, ...]], bool] = {}

    def find(self, mutation: Mutation) -> Finding | None:
        """None where `max_cases` good cases did not show the bug."""
        num_cases, seed = 0, self._first
        while num_cases < self._max_cases and seed < self._first + 4 * self._max_cases:
            if self._is_good(seed, mutation.scenarios):
                num_cases += 1
                with mutation.apply():
                    result = run_case(seed, self._worlds, mutation.scenarios)
                if result.failures:
                    self._worlds.discard()
                    return Finding(mutation.name, num_cases, seed, result.failures[0].check)
            seed += 1
        return None

    def _is_good(self, seed: int, scenarios: tuple[str, ...]) -> bool:
        if (seed, scenarios) not in self._passes:
            result: CaseResult = run_case(seed, self._worlds, scenarios)
            self._passes[seed, scenarios] = not result.failures
        return self._passes[seed, scenarios]
