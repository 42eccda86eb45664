"""Drafters, policies and engines of other packages, by the entry points of installed distributions.

    [project.entry-points."slipstream.drafters"]
    mine = "my_package:make_drafter"

What lies in the current folder does not count: it was not installed, and must not be executed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from inspect import get_annotations
from pathlib import Path
from typing import Any, Literal

from slipstream.errors import SlipstreamError, UsageError

Kind = Literal["drafter", "policy", "engine"]
GROUPS: dict[Kind, str] = {
    "drafter": "slipstream.drafters",
    "policy": "slipstream.policies",
    "engine": "slipstream.engines",
}


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point and the package that has it. Whatever is wrong with it is a UsageError that names the package."""

    kind: Kind
    entry: EntryPoint
    package: str  # name and version

    def load(self) -> Any:
        with self.blamed():
            return self.entry.load()

    def make(self, protocol: type, *arguments: object) -> Any:
        """What its callable returns for these arguments, checked."""
        maker = self.load()
        with self.blamed():
            made = maker(*arguments)
        return self.checked(made, protocol)

    def checked(self, made: Any, protocol: type) -> Any:
        """`made`, if it has every attribute that the protocol names."""
        with self.blamed():
            if lacks := missing_part(made, protocol):
                raise TypeError(f"{type(made).__name__} has no {lacks}; expected a {protocol.__name__}")
        return made

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What goes wrong in the block is a UsageError that names the package."""
        try:
            yield
        except SlipstreamError:  # raised on purpose
            raise
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"the {self.kind} {self.entry.name!r} ({self.entry.value}) of the package {self.package} does not "
                f"work: {type(error).__name__}: {error}; fix the package, or uninstall it"
            ) from error


def missing_part(made: object, protocol: type) -> str | None:
    """The first attribute that the protocol names and `made` does not have."""
    names = (*get_annotations(protocol), *vars(protocol))
    return next((name for name in names if not name.startswith("_") and not hasattr(made, name)), None)


def find_plugin(kind: Kind, name: str) -> Plugin | None:
    """Raises UsageError where two packages have this name."""
    found = [plugin for plugin in _plugins(kind) if plugin.entry.name == name]
    if len(found) > 1:
        packages = ", ".join(plugin.package for plugin in found)
        raise UsageError(f"several packages have a {kind} {name!r}: {packages}; keep one and uninstall the others")
    return found[0] if found else None


def installed_names(kind: Kind) -> list[str]:
    return sorted({plugin.entry.name for plugin in _plugins(kind)})


def also_installed(kind: Kind) -> str:
    """The end of an error that lists the valid names: those of other packages."""
    names = installed_names(kind)
    return f"; from installed packages: {', '.join(names)}" if names else ""


def _plugins(kind: Kind) -> Iterator[Plugin]:
    """Of a distribution that is installed twice, the first counts: it is the one that Python imports."""
    folders = [folder for folder in map(Path, sys.path) if folder.is_absolute() and folder.is_dir()]
    seen = set()
    for distribution in distributions(path=[str(folder) for folder in folders if not folder.samefile(".")]):
        entries = distribution.entry_points.select(group=GROUPS[kind])
        if entries and distribution.name not in seen:
            seen.add(distribution.name)
            yield from (Plugin(kind, entry, f"{distribution.name} {distribution.version}") for entry in entries)
