"""ExternalEngine: a program with its own decoding loop, controlled by its command line and over HTTP. A folder each.

A driver says how to start the engine (`plan`), how to follow its start (`readiness`), how to send requests
(`request`, `read_event`), and how to read its speculation (`speculation_state`, `read_speculation`). Processes, sockets
and timing are the same for all engines, in `process`, `readiness`, `client` and `http_generator`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.engine_types import (
    PLAIN,
    AnswerPiece,
    EngineSettings,
    Method,
    Request,
    Speculation,
    SpeculationState,
    StartPlan,
)
from slipstream.engines.openai_api import read_openai_event
from slipstream.errors import UsageError
from slipstream.parsing.log_patterns import StartLog

if TYPE_CHECKING:
    from slipstream.engines.client import Client


class ExternalEngine(Protocol):
    """What a driver provides. Attributes with a value here are defaults."""

    name: str
    version: str  # that its flags and formats were checked against
    methods: tuple[Method, ...]  # of speculation, without plain decoding
    default_port: int
    keeps_seeds: bool
    """Whether a seed gives the same text with speculation as without.

    Engines that verify by rejection keep the distribution of sampled answers, but not their texts.
    """
    readiness: StartLog
    takes: tuple[str, ...] = ()  # which of the settings in OPTIONAL it has
    default_drafter: str = "ngram"
    """Used if neither a drafter nor a draft model is given; an engine without it decodes plainly."""
    combines: bool = False  # whether several methods can be used at once
    hints: Mapping[str, str] = {}  # by Slipstream drafter: what to do instead, where the engine has nothing like it
    secret_variables: Mapping[str, str] = {}  # environment variables for values of flags that are secret, by flag

    @property
    def secret_flags(self) -> tuple[str, ...]:
        """Flags whose values can be passed without the command line; `plan` does so."""
        return tuple(self.secret_variables)

    def secret_env(self, settings: EngineSettings) -> dict[str, str]:
        """`StartPlan.secret_env`: the variables of the settings' secrets."""
        return {self.secret_variables[flag]: value for flag, value in settings.secrets.items()}

    @abstractmethod
    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        """How to start it. Has no side effects. `folder` is where `Plan.files` will be.

        Raises UsageError for unsupported settings. Does not check that the program is installed, because a plan may be
        for another machine.
        """
        ...

    def installed_version(self, program: str | None) -> str | None:
        """The version of the engine on this machine; None if it is not installed, or does not tell."""
        return None

    @abstractmethod
    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        """The request for a streamed answer. A string is continued unchanged; messages go through the chat template.

        `cold`: the prompt must not come from a cache. `top`: number of candidates per token, if the engine reports
        them.
        """
        ...

    def read_event(self, event: Mapping[str, Any]) -> AnswerPiece:
        return read_openai_event(event)

    @abstractmethod
    def speculation_state(self, client: Client) -> SpeculationState:
        """Detects a silent fallback: speculation was configured, but the engine runs without it."""
        ...

    def read_speculation(self, client: Client) -> Speculation | None:
        """Counters since the start; None if the engine has none."""
        return None


@runtime_checkable
class NamedModelEngine(Protocol):
    """An engine whose requests have to name the model that it serves."""

    def served_model(self, client: Client) -> str: ...


def logged_speculation(client: Client, answer_line: re.Pattern[str]) -> Speculation | None:
    """The sum over the lines of the engine's log that have accepted and drafted tokens; None if there is no log."""
    if not client.log:
        return None
    found = answer_line.findall(client.log_text())
    return Speculation(sum(int(drafted) for _, drafted in found), sum(int(accepted) for accepted, _ in found))


OPTIONAL = ("tensor_parallel", "pipeline_parallel", "nodes")  # settings that not every engine has


def find_method(engine: ExternalEngine, name: str) -> Method:
    """The method of this name, in any case, or a combination: A+B or A,B. Raises UsageError with the valid names."""
    name = name.replace("+", ",")
    for method in engine.methods:
        if method.name.lower() == name.lower():
            return method
    if "," in name:
        return _combined(engine, [find_method(engine, part) for part in name.split(",")])
    known = ", ".join((PLAIN, *(method.name for method in engine.methods)))
    raise UsageError(f"{engine.name} has no method {name!r}; expected {known}")


def _combined(engine: ExternalEngine, parts: Sequence[Method]) -> Method:
    """Several methods at once: the first that has a draft is used. Raises UsageError if the engine can't."""
    name, drafting = ",".join(part.name for part in parts), [part for part in parts if part.draft != "unused"]
    if not engine.combines:
        raise UsageError(f"{engine.name} runs one method at a time, not {name}")
    if len(drafting) > 1:
        raise UsageError(f"{name}: one of the methods may draft with a model, not {len(drafting)}")
    lengths = next((part.lengths for part in (*drafting, *parts) if part.lengths), ())
    return replace(drafting[0] if drafting else parts[0], name=name, like=(), lengths=lengths)


def method_like(engine: ExternalEngine, drafter: str) -> Method:
    """The engine's method of this name, or the one that corresponds to this Slipstream drafter.

    Raises UsageError if it has neither.
    """
    name = drafter.partition("(")[0]
    own = [method for method in engine.methods if method.name.lower() == name.lower()]
    found = own or [method for method in engine.methods if name in method.like]
    if found:
        return found[0]
    if "," in name or "+" in name:
        return find_method(engine, name)
    known = ", ".join((PLAIN, *(method.name for method in engine.methods)))
    instead = f". {engine.hints[name]}" if name in engine.hints else ""
    raise UsageError(f"{engine.name} has no method for the drafter {name!r}; its methods: {known}{instead}")


def check_settings(engine: ExternalEngine, settings: EngineSettings) -> Method | None:
    """The method in the settings; None for plain decoding. Raises UsageError if the settings do not fit it."""
    defaults = EngineSettings(settings.model)
    for name in OPTIONAL:
        if getattr(settings, name) != getattr(defaults, name) and name not in engine.takes:
            raise UsageError(f"{engine.name} has no use for --{name.replace('_', '-')}: remove it")
    if settings.method == PLAIN:
        return None
    method = find_method(engine, settings.method)
    if method.missing:
        raise UsageError(f"{engine.name} {method.name}: {method.missing}")
    given = {word.partition("=")[0] for word in settings.extra}
    if absent := [flag for flag in method.needs_arguments if flag not in given]:
        raise UsageError(f"{engine.name} {method.name} needs {' and '.join(absent)}: add it with --engine-args")
    if method.draft == "required" and not settings.draft:
        raise UsageError(f"{engine.name} {method.name} needs a draft model: add --draft")
    if method.draft == "unused" and settings.draft:
        raise UsageError(f"{engine.name} {method.name} drafts without a model: remove --draft")
    if settings.draft_length is not None and not method.lengths:
        raise UsageError(f"{engine.name} {method.name} has no draft length: remove it")
    if settings.p_min is not None and not method.takes_p_min:
        raise UsageError(f"{engine.name} {method.name} has no p_min: remove it")
    if settings.draft_streams is not None and not method.takes_draft_streams:
        raise UsageError(f"{engine.name} {method.name} drafts for any number of streams: remove the limit")
    return method
