"""`slipstream.yaml`: settings that every command reads, as `slipstream tune` writes them.

It is looked for in the current folder; `SLIPSTREAM_CONFIG` names another file. What the command line says goes first.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from slipstream.errors import UsageError
from slipstream.reading import parse_yaml, read_text
from slipstream.writing import write_result

FILE_NAME = "slipstream.yaml"


@dataclass(frozen=True, slots=True)
class FileSettings:
    """`engine` is set where drafter and policy were tuned for another engine than Slipstream's own."""

    model: str | None = None
    draft: str | None = None
    drafter: str | None = None
    policy: str | None = None
    backend: str | None = None
    engine: str | None = None


def read_settings() -> FileSettings:
    """The settings in the file; empty if there is no file. Raises UsageError for a file that can't be parsed."""
    named = os.environ.get("SLIPSTREAM_CONFIG")
    path = Path(named) if named else Path(FILE_NAME)
    if not path.exists():
        if named:
            raise UsageError(f"SLIPSTREAM_CONFIG names {path}, which does not exist")
        return FileSettings()
    return _checked(_parsed(path), path)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        data = parse_yaml(read_text(path))
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from error
    except ValueError as error:  # also of what is not UTF-8
        raise UsageError(f"can't read {path}: {str(error)[:300]}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{path} has a {type(data).__name__}; expected names and values, as in 'drafter: suffix'")
    return data


def _checked(data: dict[str, Any], path: Path) -> FileSettings:
    valid = [f.name for f in fields(FileSettings)]
    for key, value in data.items():
        if key not in valid:
            raise UsageError(f"{path}: unknown setting {key!r}; expected {', '.join(valid)}")
        if value is not None and not isinstance(value, str | int):
            raise UsageError(f"{path}: {key} is a {type(value).__name__}; expected text")
    return FileSettings(**{key: None if value is None else str(value) for key, value in data.items()})


def write_settings(settings: FileSettings, path: Path, comments: list[str]) -> None:
    """Writes the file whole or not at all. Comments come first, a line each."""
    import yaml

    data = {f.name: value for f in fields(settings) if (value := getattr(settings, f.name)) is not None}
    text = "".join(f"# {line}\n" for line in comments) + yaml.safe_dump(data, sort_keys=False)
    write_result(path, text)
