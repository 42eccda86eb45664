"""CommandLine: an engine's arguments. Only flags in its table can be written."""

from __future__ import annotations

from slipstream.engines.engine_types import Argument
from slipstream.engines.versions import numbers
from slipstream.errors import UsageError
from slipstream.parsing.flag_table import Flag, Table


class CommandLine:
    """Collects arguments in order. Raises for a flag that is not in the table, or an invalid value."""

    def __init__(self, table: Table, version: str | None = None) -> None:
        self._table = table
        self._version = version  # of the installed engine; None: that of the table
        self._arguments: list[Argument] = []

    def add(self, flag: str, value: object = None, why: str = "") -> None:
        """Adds a flag. Raises UsageError if the engine would refuse it, according to the table."""
        known = self._table.flag(flag)
        if not self.has(flag) and known is not None:
            raise UsageError(f"{self._table.engine} {self._version} has no flag {flag}; {known.since} was the first")
        if known is not None:
            _check(self._table, known, value)
        elif not self._table.knows(flag):
            gone = self._table.gone_name(flag)
            instead = f"; use {gone.successor}" if gone else ""
            raise UsageError(f"{self._table.engine} ({self._table.version}) has no flag {flag}{instead}")
        self._arguments.append(Argument(flag, None if value is None else str(value), why))

    def has(self, flag: str) -> bool:
        """Whether the installed version has a flag of the table."""
        known = self._table.flag(flag)
        since = known.since if known else ""
        return not since or self._version is None or numbers(self._version) >= numbers(since)

    def add_if(self, flag: str, value: object, why: str = "") -> None:
        """Adds a flag unless its value is None, which keeps the engine's default."""
        if value is not None:
            self.add(flag, value, why)

    def pass_on(self, words: tuple[str, ...]) -> None:
        """Adds the user's own arguments for the engine unchanged; the doctor checks them."""
        self._arguments += [Argument(word, why="passed on unchanged") for word in words]

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return tuple(self._arguments)


def _check(table: Table, flag: Flag, value: object) -> None:
    where = f"{table.engine} {flag.name}"
    if flag.kind == "switch":
        if value is not None:
            raise UsageError(f"{where} takes no value, got {value!r}")
        return
    if value is None:
        raise UsageError(f"{where} needs a value")
    chosen = str(value).split(",") if flag.comma else [str(value)]
    if flag.choices and not set(chosen) <= set(flag.choices):
        raise UsageError(f"{where} is {value!r}; expected {', '.join(flag.choices)}")
    if flag.kind in ("int", "float") and str(value) not in flag.words and not flag.allows(float(str(value))):
        raise UsageError(f"{where} is {value}; expected {flag.span}")
