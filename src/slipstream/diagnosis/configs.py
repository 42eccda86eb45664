"""Engine configurations: settings that an engine refuses, ignores silently, or that turn speculation off."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice

from slipstream.engines import EngineFolder, find_folder, folders
from slipstream.errors import UsageError
from slipstream.findings import Finding, rule
from slipstream.parsing.config_checks import shorten
from slipstream.parsing.configuration import RELATED, Configuration
from slipstream.parsing.log_reading import Log
from slipstream.parsing.verify_loops import verify_loop


def lint(engine: str, text: str) -> list[Finding]:
    """The problems of an engine's configuration: a command line or shell script, JSON, YAML, or a Modelfile.

    Empty if there are none. Raises UsageError for an engine that is unknown or has no configuration.
    """
    folder = find_folder(engine)
    if folder.configuration is None:
        known = ", ".join(one.name for one, _ in _configured())
        raise UsageError(f"{folder.name} has no configuration to check; engines that have one: {known}")
    text = text.removeprefix("\ufeff")
    if not text.strip():
        return []
    found = folder.configuration.lint(text)
    if found or folder.configuration.likeness(text, ""):
        return found
    other = guess_engine(text)
    looks = f"It looks like one of {other}" if other else "It is not one of another known engine either"
    fix = f"Check it with --engine {other}." if other else "Check that it is the file or command that the engine gets."
    return [NOT_RECOGNISED.finding(shorten(text.strip().splitlines()[0]), engine=folder.name, looks=looks, fix=fix)]


_BLOCK = re.compile(r"(?m)^[ \t]*```\w*[ \t]*\n(?P<text>(?:(?![ \t]*```)[^\n]{0,2000}\n){1,200})[ \t]*```")
_MAX_BLOCKS = 50
NOT_RECOGNISED = rule(
    "config-not-recognised",
    "unknown",
    "The file is not recognised as a configuration of the engine",
    "Nothing in this file is known of {engine}, so nothing was checked. {looks}.",
    "{fix}",
)
SCRIPT = rule(
    "config-script-unknown",
    "note",
    "Little of this Python code was checked",
    "It uses no engine that the doctor knows scripts of (transformers with an assistant, vLLM, llama-cpp-python). Only "
    "one mistake of own decoding loops was looked for: drafts verified one token at a time.",
    "Give the log of a run too (--log), or the models (--target, --draft).",
)
ONE_BY_ONE = rule(
    "config-one-by-one",
    "slows",
    "The code may verify drafts one token at a time",
    "The target is called inside a loop over the drafted tokens. If each call is a forward pass, the target runs as "
    "often as without a draft, and the time for drafting comes on top.",
    "To check, count the target's forward passes for one answer: as many as tokens or more, although drafts are "
    "accepted, is one by one. Score [last token] + draft in one pass, and keep the longest prefix that matches. To see "
    "what the pair can do: slipstream bench --model T --draft D.",
)


def is_script(text: str, file_name: str = "") -> bool:
    """Whether it is Python code, of no engine in particular."""
    return file_name.endswith(".py") or verify_loop(text) is not None


def lint_script(text: str) -> list[Finding]:
    """The problems of someone's own decoding loop. Empty if there are none."""
    call = verify_loop(text)
    if call:
        return [ONE_BY_ONE.finding(f"line {Log(text).line_number(call.at)}: {shorten(call.line)}")]
    return [] if guess_engine(text) else [SCRIPT.finding(shorten(text.strip().splitlines()[0]) if text.strip() else "")]


def lint_blocks(log: Log, engine: str | None = None) -> list[Finding]:
    """The problems of configurations inside a text: blocks between lines of ```, as in a report of a failure.

    Each kind of problem once. Blocks that are not clearly an engine's (or not `engine`'s) are skipped.
    """
    text, wanted = log.text, find_folder(engine).name if engine else None
    found: dict[str, Finding] = {}
    for block in islice(_BLOCK.finditer(text), _MAX_BLOCKS) if "```" in text else ():
        guessed, likeness = _likeliest(block["text"], "")
        if likeness >= RELATED and wanted in (None, guessed):
            line = log.line_number(block.start("text"))
            for finding in lint(guessed, block["text"]):
                found.setdefault(finding.id, replace(finding, evidence=f"block at line {line}, {finding.evidence}"))
    return list(found.values())


def guess_engine(text: str, file_name: str = "") -> str | None:
    """The engine of a configuration, from its file name and its text; None if neither says."""
    best, likeness = _likeliest(text, file_name)
    return best if likeness else None


def _likeliest(text: str, file_name: str) -> tuple[str, float]:
    """The engine that a configuration is most likely for, and how likely; 0 if nothing speaks for it."""
    likeness = {folder.name: configuration.likeness(text, file_name) for folder, configuration in _configured()}
    best = max(likeness, key=lambda engine: likeness[engine])
    return best, likeness[best]


def _configured() -> list[tuple[EngineFolder, Configuration]]:
    return [(folder, folder.configuration) for folder in folders() if folder.configuration]
