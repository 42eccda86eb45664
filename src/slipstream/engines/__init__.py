"""Engines: Slipstream's own, and other programs with their own decoding loop. A folder each, found by name here.

A folder has `facts.py` (FACTS: names, weights, memory, vocabulary rule) and, as far as the engine has them, `driver.py`
(ENGINE: how it is started, asked and read), `checks.py` (CONFIGURATION) and `logs.py` (LOG). To add an engine, add a
folder and a line here, or an entry point of another package that names such a folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from slipstream.errors import UsageError
from slipstream.plugins import Plugin, also_installed, find_plugin, installed_names

if TYPE_CHECKING:
    from slipstream.engines.driver import ExternalEngine
    from slipstream.engines.facts import EngineFacts
    from slipstream.parsing.configuration import Configuration
    from slipstream.parsing.log_patterns import EngineLog

log = logging.getLogger("slipstream")

FOLDERS = {
    "slipstream": "slipstream.engines.slipstream",
    "vllm": "slipstream.engines.vllm",
    "llama-server": "slipstream.engines.llama_server",
    "sglang": "slipstream.engines.sglang",
    "tabbyapi": "slipstream.engines.tabbyapi",
    "ollama": "slipstream.engines.ollama",
    "transformers": "slipstream.engines.transformers",
    "openai": "slipstream.engines.openai",
}


@dataclass(frozen=True)
class EngineFolder:
    """All that is known of one engine. Parts are imported when they are asked for."""

    name: str
    package: str
    plugin: Plugin | None = None  # of another package, which is blamed for what is wrong with it

    @cached_property
    def facts(self) -> EngineFacts:
        from slipstream.engines.facts import EngineFacts

        facts = cast("EngineFacts | None", self._part("facts", "FACTS", EngineFacts))
        if facts is None:
            raise UsageError(f"the engine {self.name!r} ({self.package}) has no facts.py with FACTS")
        if facts.name != self.name:
            raise UsageError(
                f"the engine {self.name!r} of {self.package} calls itself {facts.name!r}: the names must agree"
            )
        return facts

    @cached_property
    def driver(self) -> ExternalEngine | None:
        """None for an engine that can't be started from here."""
        from slipstream.engines.driver import ExternalEngine

        return cast("ExternalEngine | None", self._part("driver", "ENGINE", ExternalEngine))

    @cached_property
    def configuration(self) -> Configuration | None:
        from slipstream.parsing.configuration import Configuration

        return cast("Configuration | None", self._part("checks", "CONFIGURATION", Configuration))

    @cached_property
    def log(self) -> EngineLog | None:
        from slipstream.parsing.log_patterns import EngineLog

        return cast("EngineLog | None", self._part("logs", "LOG", EngineLog))

    def _part(self, file: str, name: str, kind: type) -> object | None:
        """`name` of a file in the folder, or of the package itself; None where neither has it."""
        if self.plugin is None:
            return _find(self.package, file, name)
        with self.plugin.blamed():
            part = _find(self.package, file, name)
        return None if part is None else self.plugin.checked(part, kind)


def _find(package: str, file: str, name: str) -> object | None:
    home = import_module(package)
    if not hasattr(home, name) and hasattr(home, "__path__") and find_spec(f"{package}.{file}"):
        home = import_module(f"{package}.{file}")
    return getattr(home, name, None)


@cache
def _own_folder(name: str) -> EngineFolder:
    return EngineFolder(name, FOLDERS[name])


def folders() -> Iterator[EngineFolder]:
    """Slipstream's own, then those of installed packages. A package that does not work is left out, with a warning."""
    yield from map(_own_folder, FOLDERS)
    for name in installed_names("engine"):
        if name not in FOLDERS:
            try:
                folder = _plugin_folder(name)
                _ = folder and (folder.facts, folder.driver, folder.configuration, folder.log)
            except UsageError as error:
                log.warning("%s", error)
            else:
                yield from [folder] if folder else []


def _plugin_folder(name: str) -> EngineFolder | None:
    plugin = find_plugin("engine", name)
    return EngineFolder(name, plugin.load().__name__, plugin) if plugin else None


def find_folder(name: str) -> EngineFolder:
    """By name or alias, in any case. Raises UsageError with the valid names."""
    wanted = name.lower()
    if wanted in FOLDERS:
        return _own_folder(wanted)
    if folder := _plugin_folder(name):
        return folder
    for folder in folders():
        if wanted in folder.facts.aliases:
            return folder
    raise UsageError(f"unknown engine {name!r}; expected {', '.join(FOLDERS)}{also_installed('engine')}")


def find_engine(name: str) -> ExternalEngine:
    """The driver of an engine. Raises UsageError for one that can't be started from here."""
    folder = find_folder(name)
    if folder.driver is None:
        names = ", ".join(one.name for one in folders() if one.driver)
        raise UsageError(f"{folder.name} can't be started as an engine; expected {names}")
    return folder.driver
