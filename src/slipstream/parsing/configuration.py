"""Configuration: how an engine is configured, on a command line or in a file: recognised, and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slipstream.findings import Finding
from slipstream.parsing.command_line import ShellError, Word, read_shell
from slipstream.parsing.config_checks import SYNTAX, shorten
from slipstream.parsing.flag_table import Table

# How strongly a text looks like an engine's configuration: not at all; its settings in another form; its program is
# started; its file format; its file name. Flags alone score below 1.
NOT_MINE, RELATED, STARTED, SHAPED, NAMED = 0.0, 1.0, 2.0, 3.0, 4.0


class Configuration(Protocol):
    def lint(self, text: str, /) -> list[Finding]:
        """The problems of a configuration. Empty if there are none."""
        ...

    def likeness(self, text: str, file_name: str, /) -> float:
        """How likely a text is a configuration of this engine; 0 if nothing speaks for it."""
        ...


@dataclass(frozen=True, slots=True)
class FileConfiguration:
    lint: Callable[[str], list[Finding]]
    likeness: Callable[[str, str], float]


@dataclass(frozen=True, slots=True)
class AnyConfiguration:
    """Several forms of one engine's configuration: a text is checked as the form that it looks like most."""

    forms: tuple[Configuration, ...]

    def lint(self, text: str) -> list[Finding]:
        return max(self.forms, key=lambda form: form.likeness(text, "")).lint(text)

    def likeness(self, text: str, file_name: str) -> float:
        return max(form.likeness(text, file_name) for form in self.forms)


@dataclass(frozen=True, slots=True)
class CommandConfiguration:
    """An engine that is configured on its command line, in shell text. `start` matches the word before the flags."""

    program: str
    start: re.Pattern[str]
    table: Table
    check: Callable[[list[Word]], list[Finding]]
    skip: tuple[str, ...] = ()  # subcommands that follow
    check_json: Callable[[str], list[Finding]] | None = None  # a JSON option in a file of its own
    json_table: Table | None = None  # its keys

    def lint(self, text: str) -> list[Finding]:
        if self.check_json and text.lstrip().startswith("{"):
            return self.check_json(text)
        try:
            commands, variables = read_shell(text)
        except ShellError as error:
            where = f"line {error.line} column {error.column}"
            line = text.splitlines()[error.line - 1]
            seen = f"line {error.line}: {shorten(line)}"
            return [SYNTAX.finding(seen, what=str(error), where=where, hint=error.hint)]
        found = [arguments for words in commands if (arguments := self._arguments(words)) is not None]
        if not found:  # flags alone
            found = [words for words in commands if any(word.text.startswith("-") for word in words)]
        if not found and self.check_json:  # only SPEC_CONFIG='{…}'
            return [finding for value in self._json_values(variables) for finding in self.check_json(value)]
        return list(dict.fromkeys(finding for words in found for finding in self.check(words)))  # a flag given twice

    def likeness(self, text: str, file_name: str) -> float:
        """By the program that is started; for flags alone, by how many of them it has."""
        if text.lstrip().startswith("{"):
            return STARTED if self.json_table and _keys(text) & _names(self.json_table, self.table) else NOT_MINE
        try:
            commands, variables = read_shell(text)
        except ShellError:
            commands, variables = [[Word(word, 1) for word in text.split()]], {}
        if self._json_values(variables) or any(self._arguments(words) is not None for words in commands):
            return STARTED
        flags = {word.text.partition("=")[0] for words in commands for word in words if word.text.startswith("-")}
        return min(len(flags & _names(self.table)), 99) / 100

    def _json_values(self, variables: dict[str, str]) -> list[str]:
        """Values of shell variables that are the JSON of this engine."""
        if self.json_table is None:
            return []
        names = _names(self.json_table)
        return [value for value in variables.values() if value.lstrip().startswith("{") and _keys(value) & names]

    def _arguments(self, words: list[Word]) -> list[Word] | None:
        """The arguments of the engine's program; None if the command doesn't start it."""
        start = next((at + 1 for at in range(len(words)) if self._starts(words, at)), None)
        if start is None:
            return None
        while start < len(words) and words[start].text in self.skip:
            start += 1
        return words[start:]

    def _starts(self, words: list[Word], at: int) -> bool:
        """Whether the word at `at` starts the program. The bare name counts only with a subcommand, unlike in `pip
        install vllm`.
        """
        if not self.start.match(words[at].text):
            return False
        bare = bool(self.skip) and words[at].text.rsplit("/", 1)[-1].removesuffix(".exe") == self.program
        return not bare or (at + 1 < len(words) and words[at + 1].text in self.skip)


def _names(*tables: Table) -> set[str]:
    return {name for table in tables for name in (*table.names(), *(gone.name for gone in table.gone))}


def _keys(text: str) -> set[str]:
    try:
        return set(json.loads(text))
    except (ValueError, RecursionError, TypeError):
        return set(re.findall(r'"([\w-]+)"\s*:', text))
