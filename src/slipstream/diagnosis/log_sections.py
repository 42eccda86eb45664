"""Speeds of several runs in one text: a heading or a command above them says whether a run had speculation."""

from __future__ import annotations

import re
from statistics import median_low

from slipstream.diagnosis.log_figures import number
from slipstream.parsing.log_scan import Hit

# Names of ways to draft, as people write them.
_WAY = (
    r"(?:speculat\w*|spec(?:[ _-]?dec\w*)?|draft\w*|assist\w*|eagle-?\d?|mtp|medusa|n-?gram\w*|dflash|nextn|lookahead|"
    r"prompt[ _-]lookup|suffix decod\w*)\b"
)
PLAIN = re.compile(
    rf"(?i)(?<![a-z/])(?:baseline|plain|vanilla|(?:without|no|w/o)[ _-](?:an? )?{_WAY}|"
    rf"{_WAY} ?[:=]? ?(?:off|disabled|false|none)\b)"
)
SPECULATIVE = re.compile(rf"(?i)(?<![a-z]){_WAY}")
_COMMAND = re.compile(r"^(?:[$#>] ?)?(?:\w+=\S+ )*(?:python3?|vllm|sglang|ollama|llama-[\w-]+|\./\S+|\S+\.(?:py|sh)) ")
_DRAFTS = re.compile(rf"(?i) --?(?:[\w-]*[_-])?{_WAY}(?![= ](?:false|none|off|0)\b)| -md ")
_LOGGED = re.compile(r"\b(?:INFO|DEBUG|WARN(?:ING)?|ERROR)\b|level=|^\[?\d{4}-\d\d-\d\d|^[\d.]+ [IWED] ")
_GENERATION = re.compile(
    r"(?i)(?:\boutput|\bgeneration|\bgen|\bdecode|\btg)(?: token)?(?: throughput| speed)?(?: \(tok(?:en)?s?/s\))?"
    r"\s*[:=]\s*(?P<rate>\d[\d,]*(?:\.\d+)?)(?: ?t|\s|,|$)|"
    r"(?<!prompt )\beval time =.{0,80}?(?P<eval>[\d.]+) tokens per second"
)
_LONGEST_TEXT = 200_000  # characters: a comparison that someone writes down is short
_LONGEST_HEADING = 160


def slower_section(text: str, limit: float) -> tuple[Hit, float, float] | None:
    """The first line of a run with speculation whose middle speed is below `limit` of the plain one, and both."""
    if len(text) > _LONGEST_TEXT:
        return None
    speeds: dict[str, list[tuple[Hit, float]]] = {"plain": [], "speculative": []}
    label, at = "", 0
    for line in text.splitlines(keepends=True):
        found = _GENERATION.search(line[:1_000])
        if found and label and (rate := number(found["rate"] or found["eval"])):
            speeds[label].append((Hit(at, line.strip(), {}), rate))
        elif not found:
            label = _label(line.strip()) or label
        at += len(line)
    if not all(speeds.values()):
        return None
    plain, speculative = (median_low(rate for _, rate in speeds[name]) for name in ("plain", "speculative"))
    return (speeds["speculative"][0][0], plain, speculative) if speculative < limit * plain else None


def _label(line: str) -> str:
    """What a heading or a command says of the run below it."""
    if len(line) > _LONGEST_HEADING or _LOGGED.search(line):
        return ""
    if _COMMAND.search(f"{line} "):
        return "speculative" if _DRAFTS.search(f"{line} ") else "plain"
    if PLAIN.search(line):
        return "plain"
    return "speculative" if SPECULATIVE.search(line) else ""
