"""Engine configurations: settings that an engine refuses, ignores silently, or that turn speculation off."""

from __future__ import annotations

from slipstream.engines import EngineFolder, find_folder, folders
from slipstream.errors import UsageError
from slipstream.findings import Finding
from slipstream.parsing.configuration import Configuration


def lint(engine: str, text: str) -> list[Finding]:
    """The problems of an engine's configuration: a command line or shell script, JSON, YAML, or a Modelfile.

    Empty if there are none. Raises UsageError for an engine that is unknown or has no configuration.
    """
    folder = find_folder(engine)
    if folder.configuration is None:
        known = ", ".join(one.name for one, _ in _configured())
        raise UsageError(f"{folder.name} has no configuration to check; engines that have one: {known}")
    text = text.removeprefix("\ufeff")
    return folder.configuration.lint(text) if text.strip() else []


def guess_engine(text: str, file_name: str = "") -> str | None:
    """The engine of a configuration, from its file name and its text; None if neither says."""
    likeness = {folder.name: configuration.likeness(text, file_name) for folder, configuration in _configured()}
    best = max(likeness, key=lambda engine: likeness[engine])
    return best if likeness[best] else None


def _configured() -> list[tuple[EngineFolder, Configuration]]:
    return [(folder, folder.configuration) for folder in folders() if folder.configuration]
