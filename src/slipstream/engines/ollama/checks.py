"""Ollama: Modelfiles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from slipstream.engines.ollama.drafts import DRAFT_KIND, architecture, file_here, is_draft
from slipstream.engines.ollama.flags import INSTRUCTIONS, PARAMETERS, ROLES
from slipstream.findings import Finding, rule
from slipstream.parsing.config_checks import (
    CHOICE,
    CONFLICT,
    MISSING,
    NO_EFFECT,
    SPECULATION_OFF,
    SYNTAX,
    check_value,
    shorten,
    typed,
    unknown,
)
from slipstream.parsing.configuration import NAMED, NOT_MINE, SHAPED, FileConfiguration
from slipstream.parsing.flag_table import Flag, Table

DRAFT_PATH = rule(
    "config-draft-path",
    "blocks",
    "DRAFT names a model instead of a file",
    "DRAFT needs a file or folder on this machine. {value} looks like a model name, which only FROM accepts.",
    "Use the path of a file with MTP layers or of a DFlash draft: DRAFT ./draft.gguf. For a model that Ollama already "
    "has, the FROM line of `ollama show --modelfile {value}` shows the path.",
)

_COMMANDS = Table("ollama", PARAMETERS.version, "", tuple(Flag(name) for name in INSTRUCTIONS))
_MODEL_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*(:[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    command: str
    rest: str

    @property
    def shown(self) -> str:
        return f"line {self.number}: {shorten(f'{self.command} {self.rest}')}"


def lint_file(text: str) -> list[Finding]:
    findings: list[Finding] = []
    lines: list[_Line] = []
    try:
        for line in _instructions(text):
            lines.append(line)
            findings += _check_line(line)
    except _OpenQuoteError as error:
        what = f"the quotes opened in line {error} are never closed"
        hint = 'Put text of several lines between """ and """.'
        findings.append(SYNTAX.finding(f"line {error}", what=what, where=f"line {error}", hint=hint))
    if lines and not any(line.command == "FROM" for line in lines):
        findings.append(
            MISSING.finding(lines[0].shown, what="FROM", why="every Modelfile needs a model", fix="FROM MODEL")
        )
    findings += _check_draft(lines)
    return findings


class _OpenQuoteError(ValueError):
    """Triple quotes that are never closed. The error's text is the line number."""


def _instructions(text: str) -> Iterator[_Line]:
    """The instructions with their first line numbers; text in triple quotes is skipped."""
    opened = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if opened:
            opened = 0 if '"""' in line else opened
            continue
        if not line or line.startswith("#"):
            continue
        command, _, rest = line.partition(" ")
        if line.count('"""') == 1:
            opened = number
        yield _Line(number, command.upper(), rest.strip())
    if opened:
        raise _OpenQuoteError(opened)


def _check_line(line: _Line) -> Iterator[Finding]:
    if line.command not in INSTRUCTIONS:
        yield unknown(line.command, _COMMANDS, line.shown)
    elif not line.rest:
        what = f"{line.command} without a value"
        yield SYNTAX.finding(line.shown, what=what, where=f"line {line.number}", hint="")
    elif line.command == "PARAMETER":
        yield from _check_parameter(line)
    elif line.command == "MESSAGE" and line.rest.split()[0] not in ROLES:
        yield CHOICE.finding(
            line.shown,
            name="MESSAGE",
            value=line.rest.split()[0],
            version=PARAMETERS.version,
            near="",
            choices=", ".join(ROLES),
        )


def _check_parameter(line: _Line) -> Iterator[Finding]:
    name, _, value = line.rest.partition(" ")
    flag = PARAMETERS.flag(name)
    value = value.strip().strip('"')
    if flag is None:
        yield unknown(name, PARAMETERS, line.shown)
    elif not value:
        yield SYNTAX.finding(line.shown, what=f"{name} without a value", where=f"line {line.number}", hint="")
    else:
        yield from check_value(flag, typed(flag, value), line.shown, PARAMETERS)


def _check_draft(lines: list[_Line]) -> Iterator[Finding]:
    draft = next((line for line in lines if line.command == "DRAFT" and line.rest), None)
    target = next((line for line in lines if line.command == "FROM"), None)
    count = next((line for line in lines if line.rest.startswith("draft_num_predict ")), None)
    off = count is not None and count.rest.split()[-1] == "0"
    if draft and target and draft.rest == target.rest:
        why = "DRAFT and FROM are the same model, but a draft must be smaller"
        yield CONFLICT.finding(f"{draft.shown}; {target.shown}", why=why, fix="Use a smaller model for DRAFT")
    elif draft and _MODEL_NAME.fullmatch(draft.rest) and (":" in draft.rest or not re.search(r"[./]", draft.rest)):
        yield DRAFT_PATH.finding(draft.shown, value=draft.rest)
    elif draft and (header := file_here(draft.rest)) and not is_draft(header):
        yield DRAFT_KIND.finding(draft.shown, model="MODEL", value=draft.rest, architecture=architecture(header))
    if draft and count and off:
        why = "draft_num_predict 0 turns the draft off"
        yield SPECULATION_OFF.finding(count.shown, engine="Ollama", why=why, fix="Set PARAMETER draft_num_predict 4")
    if count and not draft and not off:
        why = "there is no DRAFT line, so it only affects a model with its own prediction layers (MTP)"
        fix = "Remove it, unless the model has MTP layers, or add DRAFT with a file of MTP layers or a DFlash draft"
        yield NO_EFFECT.finding(count.shown, "note", name="draft_num_predict", why=why, fix=fix)


def _likeness(text: str, file_name: str) -> float:
    """A Dockerfile begins with FROM too, but has other instructions, and imports of Python name what they import."""
    name = PurePath(file_name).name.lower()
    if name.startswith("modelfile") or name.endswith(".modelfile"):
        return NAMED
    is_dockerfile = re.search(r"(?m)^\s*(RUN|CMD|ENTRYPOINT|COPY)\s", text)
    return SHAPED if re.search(r"(?mi)^FROM[ \t]+\S+[ \t]*$", text) and not is_dockerfile else NOT_MINE


CONFIGURATION = FileConfiguration(lint_file, _likeness)
