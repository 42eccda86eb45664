"""YAML files with the flags of a command, as `vllm serve --config FILE` and SGLang read them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from slipstream.findings import Finding
from slipstream.parsing.command_line import Word
from slipstream.parsing.config_checks import SYNTAX, shorten
from slipstream.parsing.configuration import NOT_MINE, STARTED, FileConfiguration
from slipstream.parsing.flag_table import Table
from slipstream.reading import BadYamlError, parse_yaml

_KEY = re.compile(r"(?m)^(?P<quote>['\"]?)(?P<key>[A-Za-z][\w-]*)(?P=quote)[ \t]*:(?=[ \t\r]|$)")
_LEAST = 2  # keys of an engine: one alone is in files of other programs too


def yaml_flags(table: Table, check: Callable[[list[Word]], list[Finding]]) -> FileConfiguration:
    """`check`: of the words after the command. A key `max-model-len` (or `max_model_len`) is the flag
    `--max-model-len`."""
    names = {*table.names(), *(gone.name for gone in table.gone)}

    def lint(text: str) -> list[Finding]:
        try:
            settings = parse_yaml(text)
        except ValueError as error:
            at = f"line {error.line} column {error.column}" if isinstance(error, BadYamlError) else "one of its values"
            return [SYNTAX.finding(shorten(text), what=str(error), where=at, hint="The file is YAML: `name: value`.")]
        lines = {found["key"]: text.count("\n", 0, found.start()) + 1 for found in _KEY.finditer(text)}
        return check(list(_words(settings, lines))) if isinstance(settings, dict) else []

    def likeness(text: str, file_name: str) -> float:
        """By its keys: most are flags of this engine. Sections are others' (TabbyAPI's `model:`)."""
        flags = [_flag(found["key"]) for found in _KEY.finditer(text)]
        num_known = sum(flag in names for flag in flags)
        if num_known < _LEAST or 2 * num_known <= len(flags):
            return NOT_MINE
        try:
            settings = parse_yaml(text)
        except ValueError:
            return STARTED
        if not isinstance(settings, dict) or isinstance(settings.get("model"), dict):
            return NOT_MINE
        return STARTED + num_known / 100

    return FileConfiguration(lint, likeness)


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _words(settings: dict[Any, Any], lines: dict[str, int]) -> Iterator[Word]:
    for key, value in settings.items():
        line = lines.get(str(key), 1)
        if value is False or value is None:
            continue
        yield Word(_flag(str(key)), line)
        if isinstance(value, dict):
            yield Word(json.dumps(_for_json(value)), line)
        elif value is not True:
            yield from (Word(str(part), line) for part in (value if isinstance(value, list) else [value]))


def _for_json(value: Any) -> Any:
    """With YAML's dates, sets and binary data as text, keys too."""
    if isinstance(value, dict):
        return {str(key): _for_json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_for_json(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
