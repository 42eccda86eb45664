"""Rules and checks that the configurations of all engines share: names, types, ranges, choices, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from slipstream.findings import Finding, Severity, rule
from slipstream.parsing.command_line import Option, Word
from slipstream.parsing.flag_table import Flag, Table, nearest

MAX_EVIDENCE = 200  # characters of a value to quote
MAX_CHOICES = 16  # choices to list

SYNTAX = rule(
    "config-syntax",
    "blocks",
    "The configuration is not valid JSON, YAML, shell or Modelfile syntax",
    "The configuration can't be parsed: {what}.",
    "Correct it at {where}. {hint}",
)
QUOTES = rule(
    "config-shell-quotes",
    "blocks",
    "The shell splits the JSON on the command line",
    "The shell changes the JSON before {engine} reads it: {what}.",
    "Put the whole JSON in single quotes, with double quotes inside: {option} '{example}'. Put a variable in double "
    'quotes: {option} "$SPEC".',
)
UNKNOWN = rule(
    "config-unknown-key",
    "blocks",
    "The engine has no such flag or key",
    "{engine} has no {name} ({version}); {effect}.",
    "{fix}",
)
REMOVED = rule(
    "config-removed",
    "blocks",
    "The flag or key was removed",
    "{name} was removed: {version} does not accept it.",
    "Use {successor}.",
)
DEPRECATED = rule(
    "config-deprecated",
    "note",
    "The flag, key or value is deprecated",
    "{name} is deprecated ({version}): it is accepted with a warning, or has no effect.",
    "Use {successor}.",
)
TYPE = rule(
    "config-type",
    "blocks",
    "The value has the wrong type",
    "{name} must be {expected}, and the value given is not.",
    "Set {name} to {expected}. Numbers have no quotes and no spaces.",
)
RANGE = rule(
    "config-range",
    "blocks",
    "The number is out of range",
    "{name} must be {expected}.",
    "Set {name} to a value in this range: {expected}.",
)
CHOICE = rule(
    "config-choice",
    "blocks",
    "The value is not one of the choices",
    "{name} does not accept {value!r} ({version}).",
    "{near}Choices: {choices}.",
)
MISSING = rule(
    "config-missing",
    "blocks",
    "A required setting is missing",
    "{what} is missing: {why}.",
    "Add {fix}.",
)
CONFLICT = rule(
    "config-conflict",
    "blocks",
    "Settings contradict each other",
    "These settings can't be used together: {why}.",
    "{fix}.",
)
ORDER = rule(
    "config-order",
    "blocks",
    "A minimum is above its maximum",
    "The minimum {low} = {low_value} is above the maximum {high} = {high_value}, so no value satisfies both.",
    "Lower {low} or raise {high}.",
)
NO_EFFECT = rule(
    "config-no-effect",
    "slows",
    "The setting has no effect",
    "{name} has no effect here: {why}.",
    "{fix}.",
)
SPECULATION_OFF = rule(
    "config-speculation-off",
    "slows",
    "A draft is configured, but the engine silently runs without it",
    "{engine} runs without speculation: {why}.",
    "{fix}.",
)

_KINDS = {
    "text": "text",
    "int": "a whole number",
    "float": "a number",
    "size": "a whole number, optionally with k, M or G at the end",
    "bool": "true or false",
    "json": "a JSON object",
    "list": "a list",
    "switch": "no value",
}
_SIZE = re.compile(r"\d+(\.\d+)?[kKmMgGtT]?")


def shorten(text: str) -> str:
    """One line of at most MAX_EVIDENCE characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_EVIDENCE else line[: MAX_EVIDENCE - 1] + "…"


def unknown(name: str, table: Table, evidence: str, *, dropped: bool = False, hint: str = "") -> Finding:
    """A name that is not in the table. `dropped`: the engine ignores it instead of refusing to start."""
    gone = table.gone_name(name)
    severity: Severity | None = "slows" if dropped else None
    if gone:
        wording = DEPRECATED if gone.works else REMOVED
        return wording.finding(
            evidence,
            None if gone.works else severity,
            name=name,
            version=table.version,
            successor=gone.successor,
        )
    near = table.nearest(name)
    return UNKNOWN.finding(
        evidence,
        severity,
        engine=table.engine,
        name=name,
        version=table.version,
        effect="it ignores it silently" if dropped else "it refuses to start",
        fix=hint or (f"Did you mean {near}?" if near else "Remove it, or check the name in the engine's help."),
    )


def check_value(flag: Flag, value: object, evidence: str, table: Table, *, converts: bool = False) -> Iterator[Finding]:
    """Checks type, range and choices of one value. `converts`: the engine converts "5" to 5, so a wrong type is only a
    note.
    """
    if isinstance(value, str) and (value in flag.words or value.startswith("$")):
        return  # a word that is accepted, or a variable with an unknown value
    if not _has_kind(flag, value):
        severity: Severity | None = "note" if converts and _would_convert(flag, value) else None
        yield TYPE.finding(evidence, severity, name=flag.name, expected=_expected(flag))
        return
    if flag.kind in ("int", "float") and not flag.allows(float(str(value))):
        yield RANGE.finding(evidence, name=flag.name, expected=flag.span)
    if flag.choices:
        yield from _check_choice(flag, str(value), evidence, table)


def _has_kind(flag: Flag, value: object) -> bool:
    """Whether a value has the flag's type. Values from JSON or YAML are typed, those from a command line are text."""
    match flag.kind:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "bool":
            return isinstance(value, bool)
        case "list":
            return isinstance(value, list)
        case "size":
            return bool(_SIZE.fullmatch(str(value)))
        case "json":
            return isinstance(value, dict)
        case _:
            return isinstance(value, str)


def _would_convert(flag: Flag, value: object) -> bool:
    """Whether an engine that converts types would accept it: 5 as "5" or 5.0, a number as text."""
    if flag.kind in ("int", "float") and isinstance(value, str | float):
        number = as_number(str(value))
        return number is not None and (flag.kind == "float" or number == int(number))
    return flag.kind == "text" and isinstance(value, int | float) and not isinstance(value, bool)


def as_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def typed(flag: Flag, text: str) -> object:
    """The typed value of a command line's text; the text itself if it has no typed value."""
    if flag.kind == "int":
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else text
    if flag.kind == "float":
        number = as_number(text)
        return text if number is None else number
    if flag.kind == "bool":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    return text


def _expected(flag: Flag) -> str:
    words = f" or {', '.join(flag.words)}" if flag.words else ""
    return _KINDS[flag.kind] + words


def _check_choice(flag: Flag, value: str, evidence: str, table: Table) -> Iterator[Finding]:
    chosen = value.split(",") if flag.comma else [value]
    known = {choice.lower() for choice in flag.choices}
    for item in chosen:
        if item.strip().lower() not in known:
            near = nearest(item, flag.choices)
            yield CHOICE.finding(
                evidence,
                name=flag.name,
                value=item,
                version=table.version,
                near=f"Did you mean {near}? " if near else "",
                choices=", ".join(flag.choices[:MAX_CHOICES]) + (", …" if len(flag.choices) > MAX_CHOICES else ""),
            )


def check_options(options: list[Option], table: Table) -> Iterator[Finding]:
    """Checks names and values of a command line. The module of each engine checks JSON values."""
    for option in options:
        evidence = shown(option)
        flag = table.flag(option.name)
        if flag is None:
            off = option.name.replace("--no-", "--", 1)
            if not table.knows(option.name) and not table.knows(off):
                yield unknown(option.name, table, evidence)
        elif flag.kind not in ("switch", "json"):
            if option.value is None:
                yield TYPE.finding(evidence, name=flag.name, expected=_expected(flag))
            else:
                yield from check_value(flag, typed(flag, option.value.text), evidence, table)


def shown(option: Option) -> str:
    value = f" {option.value.text}" if option.value else ""
    return f"line {option.line}: {shorten(option.written + value)}"


def read_json(value: Word, option: str, engine: str, example: str) -> tuple[object, list[Finding]]:
    """The JSON in a word, or a finding: invalid JSON, or quotes removed by the shell."""
    evidence = f"line {value.line}: {option} {shorten(value.text)}"
    if value.pieces > 1:
        what = f"it is not quoted, so the engine gets {value.pieces} words"
        return None, [QUOTES.finding(evidence, engine=engine, what=what, option=option, example=example)]
    try:
        return json.loads(value.text), []
    except (ValueError, RecursionError) as error:
        if '"' not in value.text and value.text.startswith("{"):
            what = "its double quotes are removed" if "'" not in value.text else "it has single quotes inside"
            return None, [QUOTES.finding(evidence, engine=engine, what=what, option=option, example=example)]
        return None, [bad_json(error, evidence)]


def bad_json(error: Exception, evidence: str) -> Finding:
    where = f"line {error.lineno} column {error.colno}" if isinstance(error, json.JSONDecodeError) else "deep nesting"
    what = error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deeply"
    hint = "JSON needs double quotes, true and false in lower case, and no comma after the last entry."
    return SYNTAX.finding(evidence, what=f"invalid JSON at {where}: {what}", where=where, hint=hint)
