"""Table: the settings an engine takes, as data. Flag: one of them. Gone: a name it no longer takes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["text", "int", "float", "size", "switch", "bool", "json", "list"]

# Of a misspelt name and the right one: spelling mistakes have 0.85 and more (--max-model-length), other options less
# (--temperature and --chat-template 0.64).
_ALIKE = 0.75


@dataclass(frozen=True, slots=True)
class Flag:
    """`switch` takes no value. `size` is a whole number that may end in k, M or G. `words` stand for a number."""

    name: str
    kind: Kind = "text"
    aliases: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    comma: bool = False  # the value is a list of choices with commas between them
    since: str = ""  # the first version that has it; empty: all that are supported

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def allows(self, number: float) -> bool:
        """Whether a number is in the flag's range."""
        return (self.at_least is None or number >= self.at_least) and (self.at_most is None or number <= self.at_most)

    @property
    def span(self) -> str:
        """The range in words, of a flag that has one."""
        if self.at_most is None:
            return f"{self.at_least:g} or more"
        return f"{self.at_least:g} to {self.at_most:g}" if self.at_least is not None else f"at most {self.at_most:g}"


@dataclass(frozen=True, slots=True)
class Gone:
    """A name of earlier versions. `successor` is what to write instead; `works` while it is still taken."""

    name: str
    successor: str
    works: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """`flags` are checked in full, `others` are names that exist. `version` and `source` say where they are from."""

    engine: str
    version: str
    source: str
    flags: tuple[Flag, ...]
    others: frozenset[str] = frozenset()
    gone: tuple[Gone, ...] = ()
    abbreviates: bool = False  # the engine takes the unique beginning of a name

    def flag(self, name: str) -> Flag | None:
        return next((flag for flag in self.flags if name in flag.names), None)

    def gone_name(self, name: str) -> Gone | None:
        return next((gone for gone in self.gone if gone.name == name), None)

    def names(self) -> list[str]:
        return [name for flag in self.flags for name in flag.names] + sorted(self.others)

    def knows(self, name: str) -> bool:
        return self.flag(name) is not None or name in self.others

    def full_name(self, name: str) -> str:
        """The name that `name` is short for, where the engine takes unique beginnings; else `name` itself."""
        if not self.abbreviates or self.knows(name) or self.gone_name(name) or not name.startswith("--"):
            return name
        longer = {known for known in self.names() if known.startswith(name)}
        return longer.pop() if len(longer) == 1 else name

    def nearest(self, name: str) -> str | None:
        return nearest(name, self.names())


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name most like `name`; None when nothing comes near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
    return near[0] if near else None


def names_in(file: Path) -> frozenset[str]:
    """The names in a text file."""
    return frozenset(file.read_text().split())
