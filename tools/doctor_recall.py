"""How well the doctor explains real logs: the table of tests/doctor_corpus, by part and engine.

    python tools/doctor_recall.py [--part "held back"] [--list]

A failure is `explained` if a rule quotes the line that the table names, `unknown` if the doctor says that it does not
know this line, `other line` if it only quotes another one, and `all-clear` if nothing blocks, slows or is unknown. A
healthy log is `blamed` if a finding blocks or is unknown. Recall: failures without the all-clear of all failures.
Precision: failures without the all-clear of all logs that were found at fault. `right rule`: of the failures for which
the table names a rule (`rule`; "none" if there is none), those that got it. `--list` names the entries behind each
figure.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from slipstream.diagnosis.log_signs import NO_SIGN
from slipstream.diagnosis.log_unknown import UNKNOWN
from slipstream.diagnosis.logs import judge, marks_to_keep
from slipstream.engines import FOLDERS
from slipstream.findings import Finding
from slipstream.parsing.log_reading import condensed
from slipstream.parsing.log_scan import message_of

CORPUS = Path(__file__).parents[1] / "tests" / "doctor_corpus"
PARTS = ("known", "held back")
OUTCOMES = ("explained", "unknown", "other line", "all-clear")
COLUMNS = ("failures", *OUTCOMES, "healthy", "blamed", "rule named", "right rule")
_SAYS_NOTHING = {UNKNOWN.id, NO_SIGN.id}  # rules that say that the doctor does not know
# Time, level, process, file and line, as loggers write them before a message.
_PREFIX = re.compile(
    r"^(?:\((?:\w+ )?\w+ ?pid=\d+\)|\[?\d{4}-\d\d-\d\d[T ][\d:.,+Z-]+(?: [A-Z]+\d+)*\]?|\[?\d\d-\d\d [\d:.]+|"
    r"\d\d:\d\d:\d\d\S*|\[?(?:ERROR|WARNING|INFO|CRITICAL)\]?:?|\[?\w+\.(?:py|go|cpp):\d+\]|(?:time|level|source)=\S+|[\s|])+"
)
Row = dict[str, list[str]]  # the entries behind each figure


def read(name: str, part: str | None) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (CORPUS / f"{name}.jsonl").read_text().splitlines() if line]
    return [entry for entry in entries if part in (None, entry["part"])]


def findings_of(entry: dict[str, Any]) -> list[Finding]:
    """Of an engine that the doctor does not know, the text alone decides."""
    engine = entry["engine"] if entry["engine"] in FOLDERS else None
    found = judge(condensed(entry["log"], marks_to_keep()), engine).findings
    return [finding for finding in found if finding.severity != "note"]


def said(line: str) -> str:
    """The beginning of a line's message: what a logger writes before it is the same in all lines of a traceback."""
    return _PREFIX.sub("", " ".join(message_of(line).split()))[:60]


def outcome_of(failure: dict[str, Any]) -> str:
    found = findings_of(failure)
    quoted = said(failure["line"])
    right = [finding.id for finding in found if quoted in finding.evidence]
    if not right:
        return "other line" if found else "all-clear"
    return "unknown" if set(right) <= _SAYS_NOTHING else "explained"


def has_right_rule(failure: dict[str, Any]) -> bool:
    ids = {finding.id for finding in findings_of(failure)}
    return ids <= _SAYS_NOTHING if failure["rule"] == "none" else failure["rule"] in ids


def is_blamed(healthy: dict[str, Any]) -> bool:
    return any(finding.severity in ("blocks", "unknown") for finding in findings_of(healthy))


def measure(part: str | None) -> dict[str, Row]:
    """A row for each engine."""
    rows: dict[str, Row] = defaultdict(lambda: defaultdict(list))
    for entry in read("failures", part):
        columns = ["failures", outcome_of(entry)]
        if "rule" in entry:
            columns += ["rule named", *(["right rule"] if has_right_rule(entry) else [])]
        for column in columns:
            rows[entry["engine"]][column].append(entry["id"])
    for entry in read("healthy", part):
        for column in ("healthy", *(["blamed"] if is_blamed(entry) else [])):
            rows[entry["engine"]][column].append(entry["id"])
    return rows


def total(rows: dict[str, Row]) -> Row:
    return {column: [name for row in rows.values() for name in row[column]] for column in COLUMNS}


def show(rows: dict[str, Row], title: str) -> None:
    print(f"{title:18}" + "".join(f"{column:>12}" for column in (*COLUMNS, "precision", "recall")))
    for name, row in [*rows.items(), ("all", total(rows))]:
        caught = len(row["failures"]) - len(row["all-clear"])
        precision, recall = _share(caught, caught + len(row["blamed"])), _share(caught, len(row["failures"]))
        print(f"{name:18}" + "".join(f"{len(row[column]):12}" for column in COLUMNS) + f"{precision:>12}{recall:>12}")


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    for part in [options.part] if options.part else PARTS:
        rows = measure(part)
        show(rows, part)
        for column in ("unknown", "other line", "all-clear", "blamed") if options.list else ():
            print(f"{column}: {', '.join(total(rows)[column])}")


if __name__ == "__main__":
    main()
