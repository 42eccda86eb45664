"""Logs: explains known failures by their cause, hangs by the last stage reached, slow runs by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slipstream.diagnosis.log_rules import PATTERNS
from slipstream.diagnosis.log_slow import slow_runs
from slipstream.diagnosis.log_stages import unfinished_start
from slipstream.diagnosis.log_unknown import last_error
from slipstream.engines import EngineFolder, find_folder, folders
from slipstream.findings import Finding
from slipstream.parsing.log_patterns import Pattern
from slipstream.parsing.log_scan import Hit, LineNumbers, first_hit, quote

Located = tuple[Hit, Callable[[str], Finding]]  # the place in the log, and a function from evidence to finding


def explain(text: str, engine: str | None = None) -> list[Finding]:
    """The problems that a log shows, in the order of the log, each with its line.

    An error that no rule explains is quoted as unknown. With `engine`, failures of other engines are skipped.
    """
    engines = [find_folder(engine)] if engine else list(folders())
    patterns = _patterns(engines)
    located = list(_known_failures(text, patterns))
    located += slow_runs(text)
    numbers = LineNumbers(text)
    findings = [
        make(f"line {numbers.of(hit.at)}: {quote(hit.line)}")
        for hit, make in sorted(located, key=lambda pair: pair[0].at)
    ]
    findings = _best_explanations(findings, patterns)
    if not any(finding.severity == "blocks" for finding in findings):
        quoted = [finding.evidence.partition(": ")[2] for finding in findings]
        unexplained = [one for one in last_error(text, engines, len(patterns)) if quote(one[0].line) not in quoted]
        for hit, make in unexplained or unfinished_start(text, engines):
            findings.append(make(f"line {LineNumbers(text).of(hit.at)}: {quote(hit.line)}"))
    return findings


def _patterns(engines: list[EngineFolder]) -> list[Pattern]:
    """Those of any engine and of these, each once: Ollama has llama.cpp's too."""
    own = [pattern for engine in engines if engine.log for pattern in engine.log.patterns]
    return list({pattern.rule.id: pattern for pattern in [*PATTERNS, *own]}.values())


def _known_failures(text: str, patterns: list[Pattern]) -> Iterator[Located]:
    for pattern in patterns:
        hit = first_hit(text, pattern.pieces, pattern.matches)
        if hit and (not pattern.only_with or first_hit(text, pattern.only_with, None)):
            yield hit, _maker(pattern, hit)


def _maker(pattern: Pattern, hit: Hit) -> Callable[[str], Finding]:
    groups = {name: value.strip() or _UNSAID.get(name, "not named") for name, value in hit.groups.items()}
    if "amount" in hit.groups:
        size = hit.groups["amount"] or hit.groups["torch_amount"]
        groups["amount"] = f" at an allocation of {size}" if size else ""
    return lambda evidence: pattern.rule.finding(evidence, None, **groups)


_UNSAID = {"capability": "below 8.0", "reason": "no reason given", "option": "an option"}


def _best_explanations(findings: list[Finding], patterns: list[Pattern]) -> list[Finding]:
    """Drops general findings that a more precise one in the same log replaces."""
    seen = {finding.id for finding in findings}
    replaced = {weaker for pattern in patterns if pattern.rule.id in seen for weaker in pattern.instead_of}
    return [finding for finding in findings if finding.id not in replaced]
