"""Parses shell text to find what an engine was given: words, quotes, variables."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.parsing.flag_table import Table

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_NUMBER = re.compile(r"-?\.?\d")
_CONTINUATION = re.compile(r"[\\^`]\r?\n")  # POSIX shells, cmd, PowerShell
_PLAIN = re.compile(r"[^\s;|&'\"\\^`$]+")  # characters that mean only themselves
_EXPANDED = "\0"  # marks the value of a variable that was not quoted
MAX_EXPANDED = 1 << 20  # characters; 30 lines in which each variable is twice the one before stand for gigabytes


class ShellError(ValueError):
    """Shell text that can't be read. `line` and `column` say where."""

    def __init__(self, what: str, hint: str, line: int, column: int) -> None:
        super().__init__(what)
        self.hint, self.line, self.column = hint, line, column


@dataclass(frozen=True, slots=True)
class Word:
    """`bare`: brackets or commas were not quoted. `pieces`: how many words the shell makes of it, if not one."""

    text: str
    line: int
    bare: bool = False
    pieces: int = 1


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command: the name as the table has it, as it was written, and its value."""

    name: str
    written: str
    value: Word | None
    line: int


@dataclass(frozen=True, slots=True)
class Call:
    options: list[Option]
    positionals: list[Word]

    def last(self, name: str) -> Option | None:
        """The option that takes effect: the last one given."""
        return next((option for option in reversed(self.options) if option.name == name), None)

    def value(self, name: str) -> str | None:
        option = self.last(name)
        return option.value.text if option and option.value else None

    def number(self, name: str) -> float | None:
        """The value as a number; None if it is missing or not a number (another finding reports that)."""
        try:
            return float(self.value(name) or "")
        except ValueError:
            return None

    def has(self, *names: str) -> bool:
        return any(option.name in names for option in self.options)


@dataclass(slots=True)
class _ShellReader:
    """The parser's position, the words of the current statement, and the variables set before it."""

    text: str
    at: int = 0
    line: int = 1
    words: list[Word] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    num_expanded: int = 0  # characters that variables stood for

    def value(self, variable: re.Match[str]) -> str | None:
        """The value of a variable; None if it is not set here. Raises ShellError if all of them get too long."""
        known = self.variables.get(variable[1] or variable[2])
        self.num_expanded += len(known or "")
        if self.num_expanded > MAX_EXPANDED:
            what = f"its variables stand for more than {MAX_EXPANDED:,} characters"
            raise self.error(what, "Write the values out, or start the engine with a shorter command.", self.at)
        return known

    def error(self, what: str, hint: str, at: int) -> ShellError:
        return ShellError(what, hint, self.line, at - self.text.rfind("\n", 0, at))


@functools.lru_cache(maxsize=1)  # each engine reads the same text
def read_shell(text: str) -> tuple[list[list[Word]], dict[str, str]]:
    """The commands of a shell text, with its variables filled in, and the variables; not to be changed. Raises
    ShellError for an open quote, and for variables that grow without end.
    """
    reader = _ShellReader(text)
    return list(_statements(reader)), reader.variables


def _statements(reader: _ShellReader) -> Iterator[list[Word]]:
    text = reader.text
    while reader.at < len(text):
        if _end_of_statement(reader):
            yield from _finished(reader)
        elif text[reader.at].isspace():
            reader.at += 1
        elif joint := _CONTINUATION.match(text, reader.at):
            reader.at = joint.end()
            reader.line += 1
        elif text[reader.at] == "#":
            end = text.find("\n", reader.at)
            reader.at = len(text) if end < 0 else end
        else:
            _read_word(reader)
    yield from _finished(reader)


def _end_of_statement(reader: _ShellReader) -> bool:
    char = reader.text[reader.at]
    if char == "\n":
        reader.line += 1
    if char in "\n;|&":
        reader.at += 1
        return True
    return False


def _finished(reader: _ShellReader) -> Iterator[list[Word]]:
    """Ends the current statement. A statement with only assignments sets variables."""
    words, reader.words = reader.words, []
    start = next((i for i, word in enumerate(words) if not _ASSIGNMENT.match(word.text)), len(words))
    if words and words[0].text == "export":
        start = len(words)
    if start == len(words):
        pairs = (word.text.partition("=") for word in words if "=" in word.text)
        reader.variables |= {name: value for name, _, value in pairs}
    else:
        yield words[start:]


def _read_word(reader: _ShellReader) -> None:
    """Reads one word, or the several words that an unquoted variable expands to."""
    text, line = reader.text, reader.line
    parts: list[tuple[str, bool]] = []  # piece, quoted
    while reader.at < len(text) and not text[reader.at].isspace() and text[reader.at] not in ";|&":
        if _CONTINUATION.match(text, reader.at):
            break
        parts.append(_read_piece(reader))
    joined = "".join(piece for piece, _ in parts)
    bare = any(not quoted and re.search(r"[{}:,]", piece) for piece, quoted in parts)
    falls_apart = any(piece.startswith(_EXPANDED) for piece, quoted in parts if not quoted)
    joined = joined.replace(_EXPANDED, "")
    reader.words += [Word(piece, line, bare) for piece in (joined.split() if falls_apart else [joined])]


def _read_piece(reader: _ShellReader) -> tuple[str, bool]:
    text, char = reader.text, reader.text[reader.at]
    if char in "'\"":
        return _read_quoted(reader, char), True
    if char == "\\" and reader.at + 1 < len(text):
        reader.at += 2
        return text[reader.at - 1], True
    variable = _VARIABLE.match(text, reader.at)
    if variable:
        reader.at = variable.end()
        known = reader.value(variable)
        return (variable[0], True) if known is None else (_EXPANDED + known, False)
    plain = _PLAIN.match(text, reader.at)
    reader.at = plain.end() if plain else reader.at + 1
    return plain[0] if plain else char, False


def _read_quoted(reader: _ShellReader, quote: str) -> str:
    start, text = reader.at, reader.text
    end = start + 1
    while end < len(text) and text[end] != quote:
        end += 2 if text[end] == "\\" and quote == '"' else 1
    if end >= len(text):
        hint = "A single-quoted text ends at the next single quote."
        raise reader.error(f"the quote {quote} is never closed", hint, start)
    reader.at = end + 1
    inside = text[start + 1 : end]
    reader.line += inside.count("\n")
    if quote == "'":
        return inside
    inside = re.sub(r'\\(["\\$`\n])', lambda found: "" if found[1] == "\n" else found[1], inside)
    return _VARIABLE.sub(lambda found: found[0] if (known := reader.value(found)) is None else known, inside)


def parse(words: list[Word], table: Table, *, dashes: bool = False) -> Call:
    """Options and positional words. `dashes`: the engine reads _ in a name as -."""
    options: list[Option] = []
    positionals: list[Word] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.text.startswith("-") or _NUMBER.match(word.text) or word.text == "-":
            positionals.append(word)
            continue
        written, equals, inline = word.text.partition("=")
        name = _canonical(written.replace("_", "-") if dashes and written.startswith("--") else written, table)
        flag = table.flag(name)
        value = Word(inline, word.line, word.bare) if equals else None
        if not equals and not (flag and flag.kind == "switch"):
            value, at = _value(words, at, json=bool(flag and flag.kind == "json"))
        options.append(Option(name, written, value, word.line))
    return Call(options, positionals)


def _canonical(written: str, table: Table) -> str:
    full = table.full_name(written)
    flag = table.flag(full)
    return flag.name if flag else full


def _value(words: list[Word], at: int, *, json: bool) -> tuple[Word | None, int]:
    """The value at `at`, and the next position. JSON that the shell split into words is joined again."""
    if at >= len(words) or (words[at].text.startswith("-") and not _NUMBER.match(words[at].text)):
        return None, at
    value = words[at]
    at += 1
    if json and value.text.startswith("{"):
        while value.text.count("{") > value.text.count("}") and at < len(words) and words[at].text[:2] != "--":
            value = Word(f"{value.text} {words[at].text}", value.line, value.bare, value.pieces + 1)
            at += 1
    return value, at
