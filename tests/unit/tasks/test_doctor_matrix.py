"""Machines x pairs: doctor, pairs, plan and loading agree. The whole table: tools/doctor_matrix.py."""

from __future__ import annotations

import pytest

import doctor_matrix
import fake_models
from doctor_matrix import MACHINES, PairToTry, Said, contradictions

SOME_MACHINES = ("laptop 8 GB", "RTX 3060", "4090 + 5090")

pytestmark = pytest.mark.usefixtures("own_stores")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[PairToTry]:
    folder = tmp_path_factory.mktemp("models")
    if fake_models.needs_room(folder):
        pytest.skip("this file system has no sparse files")
    return doctor_matrix.make_pairs(folder)


@pytest.mark.llamacpp  # the simulated machines have it, and loading asks this one
@pytest.mark.parametrize("name", SOME_MACHINES)
def test_all_four_say_the_same(found: list[PairToTry], name: str) -> None:
    said = {pair.name: doctor_matrix.ask_all(pair, MACHINES[name], None) for pair in found}
    assert {pair: lines for pair, one in said.items() if (lines := contradictions(one))} == {}
    words = {pair: doctor_matrix.word(one) for pair, one in said.items()}
    assert words["different vocabulary"] == "vocabulary" and words["missing shard"] == "files"
    assert words["too large"] == "no room" and words["small, runs"].endswith("x")


def test_a_context_that_is_asked_for_and_does_not_fit_is_refused_by_all(found: list[PairToTry]) -> None:
    """8 B in Q4 with 100,000 tokens: 13 GB of keys and values on a laptop."""
    said = doctor_matrix.ask_all(found[0], MACHINES["laptop 16 GB"], 100_000)
    assert not contradictions({who: one for who, one in said.items() if who != "load"})
    assert not said["doctor"].fits and not said["plan"].fits


def test_a_contradiction_is_found() -> None:
    yes, no = Said(True, True, True, True, 1.5), Said(False, False, True, True)
    assert contradictions({"doctor": yes, "plan": yes, "pairs": yes}) == []
    assert contradictions({"doctor": yes, "plan": yes, "pairs": yes, "load": no})
    assert any("proposes" in line for line in contradictions({"doctor": no, "plan": no, "pairs": yes}))
    slower = Said(True, True, True, True, 1.4)
    assert any("speedup" in line for line in contradictions({"doctor": yes, "plan": slower, "pairs": yes}))
