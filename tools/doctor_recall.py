"""How well the doctor explains real logs: the table of tests/doctor_corpus, by engine and part.

    python tools/doctor_recall.py [--part "held back"] [--list]

A failure is found if a finding quotes the line that the table names; it gets the all-clear if the doctor finds nothing
that blocks, slows or is unknown. A healthy log is blamed if a finding blocks or is unknown. `--list` names the entries
behind each figure.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from slipstream.diagnosis.logs import explain
from slipstream.engines import FOLDERS
from slipstream.findings import Finding

CORPUS = Path(__file__).parents[1] / "tests" / "doctor_corpus"
COLUMNS = ("failures", "found", "other finding", "all-clear", "healthy", "blamed")


def read(name: str, part: str | None) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (CORPUS / f"{name}.jsonl").read_text().splitlines() if line]
    return [entry for entry in entries if part in (None, entry["part"])]


def findings_of(entry: dict[str, Any]) -> list[Finding]:
    """Of an engine that the doctor does not know, the text alone decides."""
    engine = entry["engine"] if entry["engine"] in FOLDERS else None
    return [finding for finding in explain(entry["log"], engine) if finding.severity != "note"]


def outcome_of(failure: dict[str, Any]) -> str:
    found = findings_of(failure)
    if not found:
        return "all-clear"
    quoted = " ".join(failure["line"].split())[:60]
    return "found" if any(quoted in finding.evidence for finding in found) else "other finding"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("known", "held back"))
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    rows: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for entry in read("failures", options.part):
        rows[entry["engine"]]["failures"].append(entry["id"])
        rows[entry["engine"]][outcome_of(entry)].append(entry["id"])
    for entry in read("healthy", options.part):
        rows[entry["engine"]]["healthy"].append(entry["id"])
        if any(finding.severity in ("blocks", "unknown") for finding in findings_of(entry)):
            rows[entry["engine"]]["blamed"].append(entry["id"])
    print(f"{'':18}" + "".join(f"{column:>15}" for column in COLUMNS))
    for engine, row in rows.items():
        print(f"{engine:18}" + "".join(f"{len(row[column]):15}" for column in COLUMNS))
    print(f"{'all':18}" + "".join(f"{sum(len(row[column]) for row in rows.values()):15}" for column in COLUMNS))
    if options.list:
        for column in ("other finding", "all-clear", "blamed"):
            print(f"{column}: {', '.join(name for row in rows.values() for name in row[column])}")


if __name__ == "__main__":
    main()
