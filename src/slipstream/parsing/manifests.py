"""Manifests: the commands of containers in a file of Kubernetes or Compose, as shell text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream.reading import parse_yaml

_SEPARATOR = re.compile(r"(?m)^---[ \t]*$")
_SCRIPT = re.compile(r"[^\0]+(?:\0-\w+)*?\0-\w*c\0([^\0]*)(?:\0.*)?", re.DOTALL)  # its words, apart by zeros
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash")


def as_shell(text: str) -> str:
    """A command for each container that is started, as `docker run` has it, in the line where its image is named. Any
    other text is left as it is."""
    try:
        documents = [parse_yaml(part) for part in _SEPARATOR.split(text)]
    except ValueError:
        return text
    containers = [one for document in documents for one in _containers(document)]
    if not containers:
        return text
    lines, at = list[str](), 0
    for container in containers:
        at = max(text.find(container["image"], at), at)
        line = text.count("\n", 0, at)
        lines += [""] * (line - len(lines))
        lines += _command(container).splitlines()
    return "\n".join(lines)


def _containers(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if isinstance(value.get("image"), str):
            yield value
        for part in value.values():
            yield from _containers(part)
    elif isinstance(value, list):
        for part in value:
            yield from _containers(part)


def _command(container: Mapping[str, Any]) -> str:
    parts = [container.get(key) for key in ("entrypoint", "command", "args")]
    words = [str(word) for part in parts if isinstance(part, list) for word in part]
    if words and words[0] in _SHELLS and (script := _SCRIPT.fullmatch("\0".join(words))):
        return script[1].replace("$$", "$")
    texts = [part if isinstance(part, str) else shlex.join(map(str, part)) for part in parts if part]
    return " ".join(["docker run", container["image"], *texts]).replace("$$", "$")
