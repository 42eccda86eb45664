r"""Known failures as data: TOML files, a table for each rule. A new one needs no code.

[log-port-taken]
severity = "blocks"             # or "slows", "note"
title = "The port is in use"
cause = "Another program already listens on port {port}."
fix = "Stop that program, or use another port."
texts = ["address already in use"]          # exact texts, one of which is in the line
matches = 'in use: (?P<port>\d+)'        # may be a list of parts; its groups fill in cause and fix
only_with = ["uvicorn"]         # texts elsewhere in the log, one of which is needed too
unless = ["retrying"]           # texts that show that the line is harmless
ended_by = ["started in"]       # texts after the last such line that show that it is over
instead_of = ["log-refused"]    # less precise rules that this one replaces
phase = "start"                 # before the engine is ready; "serving": after that
frames = ["llama_cpp/"]         # texts, one of which must be in the traceback above the line
fix_on = {AMD = "…"}            # another fix for a platform (parsing/log_platforms.py) or an engine (ollama)
if_survived = "slows"           # where the engine works after it, without the draft that failed
before_run = true               # a server prints the line once, and starts several runs after it
general = true                  # it can do little more than repeat the message: any other explanation replaces it
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slipstream.findings import rule
from slipstream.parsing.log_patterns import Pattern

_KEYS = {
    *("severity", "title", "cause", "fix", "texts", "matches", "only_with", "unless", "ended_by", "instead_of"),
    *("phase", "frames", "general", "fix_on", "if_survived", "before_run"),
}


def read_failures(path: Path) -> tuple[Pattern, ...]:
    """Of one file, or of all files in a folder."""
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    return tuple(pattern for file in files for pattern in _read(file))


def _read(file: Path) -> Iterator[Pattern]:
    for rule_id, values in tomllib.loads(file.read_text(encoding="utf-8")).items():
        unknown = values.keys() - _KEYS
        if unknown:
            raise ValueError(f"{file.name}: {rule_id} has {sorted(unknown)}; expected {sorted(_KEYS)}")
        yield _pattern(rule_id, values)


def _pattern(rule_id: str, values: Mapping[str, Any]) -> Pattern:
    matches = values.get("matches", "")
    matches = matches if isinstance(matches, str) else "".join(matches)
    return Pattern(
        rule=rule(rule_id, values["severity"], values["title"], values["cause"], values["fix"]),
        pieces=tuple(values["texts"]),
        matches=re.compile(matches, re.MULTILINE) if matches else None,
        only_with=tuple(values.get("only_with", ())),
        instead_of=tuple(values.get("instead_of", ())),
        phase=values.get("phase", "any"),
        frames=tuple(values.get("frames", ())),
        general=values.get("general", False),
        unless=tuple(values.get("unless", ())),
        ended_by=tuple(values.get("ended_by", ())),
        fix_on=tuple(values.get("fix_on", {}).items()),
        if_survived=values.get("if_survived"),
        before_run=values.get("before_run", False),
    )
