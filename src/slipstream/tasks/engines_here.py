"""engines: the engines that Slipstream knows, the versions on this machine, and their methods."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from slipstream.engines import EngineFolder, find_folder, folders
from slipstream.engines.engine_types import Method


@dataclass(frozen=True, slots=True)
class ListedEngine:
    name: str
    aliases: tuple[str, ...]
    weights: str
    checked_version: str | None  # the version that its flags were checked against; None: it is not started from here
    installed_version: str | None  # on this machine, as far as it can be told
    methods: tuple[Method, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def list_engines(name: str | None = None) -> list[ListedEngine]:
    """All engines, or the one of this name. Raises UsageError for an unknown one."""
    return [_listed(folder) for folder in ([find_folder(name)] if name else folders())]


def _listed(folder: EngineFolder) -> ListedEngine:
    facts, driver = folder.facts, folder.driver
    return ListedEngine(
        name=facts.name,
        aliases=facts.aliases,
        weights=facts.weights,
        checked_version=driver.version if driver else None,
        installed_version=driver.installed_version(None) if driver else None,
        methods=driver.methods if driver else (),
    )
