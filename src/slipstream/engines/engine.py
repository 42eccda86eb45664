"""ExternalEngine: a program that owns its loop and is driven by a command line and over HTTP. One file each.

An engine file says how the engine is started (`plan`), how its start is followed (`readiness`), how it is asked
(`request`, `read_event`), and how it tells of speculation (`speculation_state`, `read_speculation`). Processes, sockets
and timing are the same for all of them and live in `process`, `readiness`, `client` and `http_generator`.
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
    Readiness,
    Request,
    Speculation,
    SpeculationState,
    StartPlan,
)
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.engines.client import Client


class ExternalEngine(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """What its flags and formats were checked against."""
        ...

    @property
    def methods(self) -> tuple[Method, ...]:
        """Ways to speculate, without plain decoding."""
        ...

    @property
    def default_port(self) -> int: ...

    @property
    def keeps_seeds(self) -> bool:
        """Whether a seed gives the same text with speculation as without.

        Engines that verify by rejection keep the distribution of sampled answers, and not their texts.
        """
        ...

    @property
    def secret_flags(self) -> tuple[str, ...]:
        """Flags with secrets that it can be given in another way than on its command line; `plan` does so."""
        ...

    @property
    def readiness(self) -> Readiness: ...

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        """How to start it; starts, writes and looks up nothing. `folder` is where `Plan.files` will be.

        Raises UsageError for settings that it can't have. Whether the program is installed shows at the start: a plan
        is also made for other machines.
        """
        ...

    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        """A streamed answer. A string is continued as it is, messages go through the chat template.

        `cold`: the prompt may not come from a cache. `top`: so many candidates for every token, where it tells them.
        """
        ...

    def read_event(self, event: Mapping[str, Any]) -> AnswerPiece: ...

    def speculation_state(self, client: Client, settings: EngineSettings) -> SpeculationState:
        """Detects the silent fallback: asked to speculate, started, and decoding plainly."""
        ...

    def read_speculation(self, client: Client) -> Speculation | None:
        """Counters since the start; None where it counts nothing that can be read."""
        ...


def find_method(engine: ExternalEngine, name: str) -> Method:
    """The method of this name. Raises UsageError that lists the valid ones."""
    for method in engine.methods:
        if method.name == name:
            return method
    known = ", ".join((PLAIN, *(method.name for method in engine.methods)))
    raise UsageError(f"{engine.name} has no method {name!r}; it knows {known}")


def method_like(engine: ExternalEngine, drafter: str) -> Method:
    """The engine's method of this name, or the one that does what this drafter of Slipstream does.

    Raises UsageError where it has neither.
    """
    name = drafter.partition("(")[0]
    own = [method for method in engine.methods if method.name == name]
    found = own or [method for method in engine.methods if name in method.like]
    if found:
        return found[0]
    alike = "; ".join(f"{m.name} ({', '.join(m.like)})" for m in engine.methods if m.like)
    raise UsageError(f"{engine.name} has nothing like the drafter {name!r}; it has {alike}")


def check_settings(engine: ExternalEngine, settings: EngineSettings) -> Method | None:
    """The method that the settings name, None for plain decoding. Raises UsageError where they contradict it."""
    if settings.method == PLAIN:
        return None
    method = find_method(engine, settings.method)
    if method.draft == "required" and not settings.draft:
        raise UsageError(f"{engine.name} {method.name} drafts with a model of its own: give one with --draft")
    if method.draft == "unused" and settings.draft:
        raise UsageError(f"{engine.name} {method.name} drafts without a model: leave --draft out")
    if settings.draft_length is not None and not method.lengths:
        raise UsageError(f"{engine.name} {method.name} takes no draft length: leave it out")
    if settings.p_min is not None and not method.takes_p_min:
        raise UsageError(f"{engine.name} {method.name} takes no p_min: leave it out")
    if settings.draft_streams is not None and not method.takes_draft_streams:
        raise UsageError(f"{engine.name} {method.name} drafts for any number of streams: leave the limit out")
    return method
