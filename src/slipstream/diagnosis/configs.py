"""Engine configurations: settings that an engine refuses, ignores silently, or that turn speculation off."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from slipstream.diagnosis import configs_llama_server, configs_ollama, configs_sglang, configs_tabbyapi, configs_vllm
from slipstream.diagnosis.command_line import ShellError, Word, statements
from slipstream.diagnosis.config_checks import SYNTAX, shorten
from slipstream.engines.flags import TABLES
from slipstream.engines.flags.tabbyapi import SECTION_NAMES, SECTIONS
from slipstream.errors import UsageError
from slipstream.findings import Finding


@dataclass(frozen=True, slots=True)
class _Program:
    """How an engine's command is recognised, and the function that checks it. `start` matches the word before the
    flags.
    """

    start: re.Pattern[str]
    lint: Callable[[list[Word]], list[Finding]]
    skip: tuple[str, ...] = ()  # subcommands that follow


_PROGRAMS = {
    "vllm": _Program(
        re.compile(r"(.*/)?vllm(\.exe)?$|vllm\.entrypoints[\w.]*$|.*vllm/vllm-openai(:[\w.-]+)?$"),
        configs_vllm.lint_command,
        ("serve", "bench", "run-batch"),
    ),
    "llama-server": _Program(
        re.compile(r"(.*[/\\])?llama-server(\.exe)?$|.*llama\.cpp:(server|full)[\w.-]*$"),
        configs_llama_server.lint_command,
    ),
    "sglang": _Program(
        re.compile(r"(.*/)?sglang$|sglang\.launch_server$|.*lmsysorg/sglang(:[\w.-]+)?$"),
        configs_sglang.lint_command,
        ("serve", "python3", "python", "-m", "sglang.launch_server"),
    ),
}
_FILES: dict[str, Callable[[str], list[Finding]]] = {
    "tabbyapi": configs_tabbyapi.lint_file,
    "ollama": configs_ollama.lint_file,
}
ENGINES = (*_PROGRAMS, *_FILES)


def lint(engine: str, text: str) -> list[Finding]:
    """The problems of an engine's configuration: a command line or shell script, JSON, YAML, or a Modelfile.

    Empty if there are none. Raises UsageError for an unknown engine.
    """
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}; expected one of {', '.join(ENGINES)}")
    text = text.removeprefix("\ufeff")
    if not text.strip():
        return []
    if engine in _FILES:
        return _FILES[engine](text)
    if engine == "vllm" and text.lstrip().startswith("{"):
        return configs_vllm.lint_json(text)
    return _lint_shell(_PROGRAMS[engine], text)


def _lint_shell(program: _Program, text: str) -> list[Finding]:
    try:
        commands = list(statements(text))
    except ShellError as error:
        where = f"line {error.line} column {error.column}"
        line = text.splitlines()[error.line - 1]
        hint = "A single-quoted text ends at the next single quote."
        return [SYNTAX.finding(f"line {error.line}: {shorten(line)}", what=str(error), where=where, hint=hint)]
    found = [arguments for words in commands if (arguments := _arguments(program, words)) is not None]
    if not found:  # flags alone
        found = [words for words in commands if any(word.text.startswith("-") for word in words)]
    return [finding for words in found for finding in program.lint(words)]


def _arguments(program: _Program, words: list[Word]) -> list[Word] | None:
    """The arguments of the engine's program; None if the command doesn't start it."""
    start = next((at + 1 for at in range(len(words)) if _starts(program, words, at)), None)
    if start is None:
        return None
    while start < len(words) and words[start].text in program.skip:
        start += 1
    return words[start:]


def _starts(program: _Program, words: list[Word], at: int) -> bool:
    """Whether the word at `at` starts the program. The bare name counts only with a subcommand, unlike in `pip install
    vllm`.
    """
    if not program.start.match(words[at].text):
        return False
    bare = bool(program.skip) and words[at].text.rsplit("/", 1)[-1].removesuffix(".exe") in _PROGRAMS
    return not bare or (at + 1 < len(words) and words[at + 1].text in program.skip)


def guess_engine(text: str, file_name: str = "") -> str | None:
    """The engine of a configuration, from its file name and its text; None if neither says."""
    name = PurePath(file_name).name.lower()
    if name.startswith("modelfile") or name.endswith(".modelfile"):
        return "ollama"
    if text.lstrip().startswith("{"):
        return _guess_json(text)
    if re.search(r"(?mi)^FROM\s+\S", text) and not re.search(r"(?m)^\s*(RUN|CMD|ENTRYPOINT|COPY)\s", text):
        return "ollama"
    sections = {*SECTIONS, *SECTION_NAMES}
    if len({found for found in re.findall(r"(?m)^(\w+):\s*(?:#.*)?$", text) if found in sections}) >= 1:
        return "tabbyapi"
    return _guess_command(text)


def _guess_json(text: str) -> str | None:
    names = {name for table in TABLES["vllm"] for name in (*table.names(), *(gone.name for gone in table.gone))}
    try:
        keys = set(json.loads(text))
    except (ValueError, RecursionError, TypeError):
        keys = set(re.findall(r'"([\w-]+)"\s*:', text))
    return "vllm" if keys & names else None


def _guess_command(text: str) -> str | None:
    """The engine by the program that is started; for flags alone, the engine that has most of them."""
    try:
        commands = list(statements(text))
    except ShellError:
        commands = [[Word(word, 1) for word in text.split()]]
    for engine, program in _PROGRAMS.items():
        if any(_arguments(program, words) is not None for words in commands):
            return engine
    flags = {word.text.partition("=")[0] for words in commands for word in words if word.text.startswith("-")}
    known = {engine: sum(_takes(engine, flag) for flag in flags) for engine in _PROGRAMS}
    best = max(known, key=lambda engine: known[engine])
    return best if known[best] else None


def _takes(engine: str, flag: str) -> bool:
    table = TABLES[engine][0]
    return table.knows(flag) or table.gone_name(flag) is not None
