"""ExternalEngine: a program with its own decoding loop, controlled by its command line and over HTTP. One file each.

An engine file says how to start the engine (`plan`), how to follow its start (`readiness`), how to send requests
(`request`, `read_event`), and how to read its speculation (`speculation_state`, `read_speculation`). Processes, sockets
and timing are the same for all engines, in `process`, `readiness`, `client` and `http_generator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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
from slipstream.errors import UsageError
from slipstream.parsing.log_patterns import StartLog

if TYPE_CHECKING:
    from slipstream.engines.client import Client


class ExternalEngine(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """The version that its flags and formats were checked against."""
        ...

    @property
    def methods(self) -> tuple[Method, ...]:
        """Speculation methods, without plain decoding."""
        ...

    @property
    def default_port(self) -> int: ...

    @property
    def keeps_seeds(self) -> bool:
        """Whether a seed gives the same text with speculation as without.

        Engines that verify by rejection keep the distribution of sampled answers, but not their texts.
        """
        ...

    @property
    def secret_flags(self) -> tuple[str, ...]:
        """Flags with secrets that can be passed without the command line; `plan` does so."""
        ...

    @property
    def readiness(self) -> StartLog: ...

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        """How to start it. Has no side effects. `folder` is where `Plan.files` will be.

        Raises UsageError for unsupported settings. Does not check that the program is installed, because a plan may be
        for another machine.
        """
        ...

    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        """The request for a streamed answer. A string is continued unchanged; messages go through the chat template.

        `cold`: the prompt must not come from a cache. `top`: number of candidates per token, if the engine reports
        them.
        """
        ...

    def read_event(self, event: Mapping[str, Any]) -> AnswerPiece: ...

    def speculation_state(self, client: Client, settings: EngineSettings) -> SpeculationState:
        """Detects a silent fallback: speculation was configured, but the engine runs without it."""
        ...

    def read_speculation(self, client: Client) -> Speculation | None:
        """Counters since the start; None if the engine has none."""
        ...


def find_method(engine: ExternalEngine, name: str) -> Method:
    """The method of this name. Raises UsageError with the valid names."""
    for method in engine.methods:
        if method.name == name:
            return method
    known = ", ".join((PLAIN, *(method.name for method in engine.methods)))
    raise UsageError(f"{engine.name} has no method {name!r}; expected {known}")


def method_like(engine: ExternalEngine, drafter: str) -> Method:
    """The engine's method of this name, or the one that corresponds to this Slipstream drafter.

    Raises UsageError if it has neither.
    """
    name = drafter.partition("(")[0]
    own = [method for method in engine.methods if method.name == name]
    found = own or [method for method in engine.methods if name in method.like]
    if found:
        return found[0]
    alike = "; ".join(f"{m.name} ({', '.join(m.like)})" for m in engine.methods if m.like)
    raise UsageError(f"{engine.name} has no method for the drafter {name!r}; it has {alike}")


def check_settings(engine: ExternalEngine, settings: EngineSettings) -> Method | None:
    """The method in the settings; None for plain decoding. Raises UsageError if the settings do not fit it."""
    if settings.method == PLAIN:
        return None
    method = find_method(engine, settings.method)
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
