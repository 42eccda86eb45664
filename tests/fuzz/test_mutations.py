"""The fuzz finds deliberate bugs: each one within a bounded number of cases."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator

import pytest

from fuzz.garbage import freeze
from fuzz.mutation_check import MutationCheck
from fuzz.mutations import MUTATIONS
from fuzz.worlds import make_worlds

_MAX_CASES = 150
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def check_of() -> Iterator[Callable[[str], MutationCheck]]:
    """The check of a backend, made once: it knows which cases pass without mutations."""
    checks: dict[str, MutationCheck] = {}

    def check(backend: str) -> MutationCheck:
        if backend not in checks:
            checks[backend] = MutationCheck(make_worlds(backend), _MAX_CASES)
        return checks[backend]

    logging.disable(logging.CRITICAL)
    freeze()
    yield check
    logging.disable(logging.NOTSET)
    gc.unfreeze()


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_fuzz_finds(name: str, check_of: Callable[[str], MutationCheck]) -> None:
    mutation = MUTATIONS[name]
    finding = check_of(mutation.backend).find(mutation)
    assert finding, f"{_MAX_CASES} cases passed with this bug in the product: {name}"
