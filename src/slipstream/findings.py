"""Finding: one result of a doctor check. Rule: the kind of finding, with its texts.

Every rule is declared once, next to the check that applies it, and registers itself. The documentation page is
generated from the registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["blocks", "unknown", "slows", "note"]
SEVERITIES: tuple[Severity, ...] = ("blocks", "unknown", "slows", "note")
Topic = Literal["vocabulary", "weights", "head", "machine", "fit", "config", "log", "runtime"]
TOPICS: tuple[Topic, ...] = ("vocabulary", "weights", "head", "machine", "fit", "config", "log", "runtime")


@dataclass(frozen=True, slots=True)
class Finding:
    """`evidence` is what was found, `cause` what it means, `fix` what to do: a command or a setting."""

    id: str
    severity: Severity
    evidence: str
    cause: str
    fix: str

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

    def finding(self, evidence: str, severity: Severity | None = None, **values: object) -> Finding:
        """A finding with the rule's texts. `severity` overrides the rule's severity, for engines where it is more or
        less serious.
        """
        return Finding(
            self.id, severity or self.severity, evidence, self.cause.format(**values), self.fix.format(**values)
        )


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


def blocks(findings: Iterable[Finding]) -> bool:
    return any(f.severity == "blocks" for f in findings)
