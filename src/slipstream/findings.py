"""Finding: one result of a doctor check. Rule: the kind of finding, with its texts.

Every rule is declared once, next to the check that applies it, and registers itself. The documentation page is
generated from the registry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from slipstream.errors import ModelError

Severity = Literal["blocks", "unknown", "slows", "note"]
SEVERITIES: tuple[Severity, ...] = ("blocks", "unknown", "slows", "note")
MAX_TEXT = 2_000  # characters of a finding's evidence or of a value in its texts: a damaged file can name megabytes
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
TOPICS = ("vocabulary", "weights", "head", "machine", "fit", "config", "log", "runtime")


@dataclass(frozen=True, slots=True)
class Finding:
    """`evidence` is what was found, `cause` what it means, `fix` what to do: a command or a setting."""

    id: str
    severity: Severity
    evidence: str
    cause: str
    fix: str

    @property
    def title(self) -> str:
        """The finding in one line: what its rule looks for."""
        return RULES[self.id].title if self.id in RULES else self.cause

    def with_evidence(self, evidence: str) -> Finding:
        return replace(self, evidence=_shortened(evidence))

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Rule:
    """`cause` and `fix` are templates; `finding` fills in the names in braces."""

    id: str  # topic and name: vocabulary-size
    severity: Severity
    title: str  # what the check looks for, in one line
    cause: str
    fix: str

    @property
    def topic(self) -> str:
        return self.id.split("-", 1)[0]

    def finding(self, evidence: str = "", severity: Severity | None = None, **values: object) -> Finding:
        """A finding with the rule's texts. `severity` overrides the rule's severity, for engines where it is more or
        less serious.
        """
        short = {name: _shortened(value) if isinstance(value, str) else value for name, value in values.items()}
        return Finding(
            self.id,
            severity or self.severity,
            _shortened(evidence),
            self.cause.format(**short),
            self.fix.format(**short),
        )


def _shortened(text: str) -> str:
    """Beginning and end of a text that is too long to be read, without what would command a terminal."""
    half, text = MAX_TEXT // 2, _CONTROL.sub("", text)
    return text if len(text) <= MAX_TEXT else f"{text[:half]} … {text[-half:]}"


class BlockedError(ModelError):
    """A model or a pair that can't run here. `findings` are the doctor's blocking findings."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        super().__init__("\n".join(f"{f.id}: {f.evidence.rstrip('.')}. {f.cause} {f.fix}" for f in findings))


RULES: dict[str, Rule] = {}


def rule(id: str, severity: Severity, title: str, cause: str, fix: str) -> Rule:
    """Declares a rule. Its id begins with its topic. Raises ValueError if the id is already declared."""
    if id in RULES or id.split("-", 1)[0] not in TOPICS:
        raise ValueError(f"rule {id!r} is declared twice, or its topic is not one of {', '.join(TOPICS)}")
    RULES[id] = Rule(id, severity, title, cause, fix)
    return RULES[id]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Each once, also if several checks found it."""
    return sorted(dict.fromkeys(findings), key=lambda f: SEVERITIES.index(f.severity))


def blocking(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "blocks"]


def blocks(findings: Iterable[Finding]) -> bool:
    return bool(blocking(findings))


def refuse(findings: Iterable[Finding]) -> None:
    """Raises BlockedError with the findings that block, if there are any."""
    if found := blocking(findings):
        raise BlockedError(found)
