"""Secrets: keeps keys, tokens and passwords out of files, output and the process list.

`redacted` hides them in a command line, and is used wherever one is printed or recorded. `take_secrets` removes secrets
that can be passed in another way from an engine's command line, which every user of the machine can read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from slipstream.engines.engine_types import StartPlan
from slipstream.errors import UsageError

HIDDEN = "HIDDEN"
_NAME = r"[\w.-]*(?:api[-_]?keys?|passw(?:or)?d|secret|(?:hf|hub|auth|access|bearer)[-_]token)"
_FLAG = re.compile(rf"(?:.*=)?(?:--?{_NAME}|--token|-hft)", re.IGNORECASE)  # its value is the next word
_WHOLE = re.compile(rf"(-*{_NAME}=).+", re.IGNORECASE | re.DOTALL)  # --api-key=VALUE, VLLM_API_KEY=VALUE
_INSIDE = re.compile(rf"""({_NAME}["']?\s*[=:]\s*["']?)[^\s"',}}&]+""", re.IGNORECASE)  # {"api_key": "VALUE"}
_USER = re.compile(r"(://)[^/@\s]+@")  # https://USER:PASSWORD@host


def redacted(words: Sequence[str]) -> list[str]:
    """The words of a command line with HIDDEN in place of every secret; as many words as before.

    A secret is recognised by the name of its flag, variable or key. A word that is itself a command line, such as the
    value of --engine-args, is treated the same way. All words up to the next flag are hidden, because some flags accept
    several keys.
    """
    shown: list[str] = []
    hides_next = hides_more = False
    for word in words:
        hides = hides_next or (hides_more and not word.startswith("-"))
        shown.append(HIDDEN if hides else redacted_text(word))
        hides_next, hides_more = not hides and bool(_FLAG.fullmatch(word)), hides
    return shown


def redacted_text(text: str) -> str:
    """One word, a text of several, or an address, with HIDDEN in place of every secret."""
    if match := _WHOLE.fullmatch(text):
        return f"{match[1]}{HIDDEN}"
    text = _USER.sub(rf"\1{HIDDEN}@", _INSIDE.sub(rf"\1{HIDDEN}", text))
    words = _split(text)
    if len(words) > 1 and (shown := redacted(words)) != words:
        return shlex.join(shown)
    return text


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


def without_secrets(plan: StartPlan) -> StartPlan:
    """The plan for printing and writing: with the names of secrets, without their values."""
    words = iter(redacted(plan.argv))
    program = tuple(next(words) for _ in plan.program)
    arguments = tuple(
        replace(argument, flag=next(words), value=None if argument.value is None else next(words))
        for argument in plan.arguments
    )
    return replace(
        plan,
        program=program,
        arguments=arguments,
        secret_env=dict.fromkeys(plan.secret_env, HIDDEN),
        secret_files=dict.fromkeys(plan.secret_files, HIDDEN),
    )


def take_secrets(words: Sequence[str], flags: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Values of `flags` by flag, and the words without them. Raises UsageError for a flag without one value."""
    found: dict[str, str] = {}
    rest: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name, has_value, value = word.partition("=")
        name = name.replace("_", "-")  # engines accept both
        if name not in flags:
            rest.append(word)
            continue
        if not has_value:
            value = remaining.pop(0) if remaining else ""
        if not value or name in found or (not has_value and remaining and not remaining[0].startswith("-")):
            raise UsageError(f"{name} among the engine's arguments; expected one value for it")
        found[name] = value
    return found, tuple(rest)
