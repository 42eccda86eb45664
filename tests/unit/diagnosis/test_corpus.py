"""Real logs (tests/doctor_corpus): the table is sound, and the doctor explains at least as many as it did."""

from __future__ import annotations

import pytest

import doctor_recall

LEAST_FOUND, MOST_CLEARED, MOST_BLAMED = 129, 12, 8  # of 168 failures and 72 healthy logs; better figures belong here


@pytest.mark.parametrize(("name", "least"), [("failures", 120), ("healthy", 60)])
def test_the_table_is_sound(name: str, least: int):
    entries = doctor_recall.read(name, None)
    assert len(entries) >= least and len({entry["id"] for entry in entries}) == len(entries)
    assert {entry["part"] for entry in entries} == {"known", "held back"}
    assert all(entry.get("line", entry["log"].splitlines()[0]) in entry["log"].splitlines() for entry in entries)


def test_as_many_failures_are_explained_as_before_and_no_more_healthy_logs_are_blamed():
    outcomes = [doctor_recall.outcome_of(entry) for entry in doctor_recall.read("failures", None)]
    blamed = [
        entry["id"]
        for entry in doctor_recall.read("healthy", None)
        if any(finding.severity in ("blocks", "unknown") for finding in doctor_recall.findings_of(entry))
    ]
    assert outcomes.count("found") >= LEAST_FOUND and outcomes.count("all-clear") <= MOST_CLEARED
    assert len(blamed) <= MOST_BLAMED
