"""ExternalEngine: a program that owns its loop and is driven by a command line and over HTTP. One file each.

An engine file says how the engine is started (`plan`), how its start is followed (`readiness`), how it is asked
(`request`, `read_event`), and how it tells of speculation (`speculation_state`, `read_speculation`). Processes, sockets
and timing are the same for all of them and live in `process`, `readiness`, `client` and `http_generator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.engines.client import Client

PLAIN = "none"  # the method of plain decoding, in every engine
Need = Literal["required", "optional", "unused"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine is to run, in words that all engines share. None leaves a value to the engine."""

    model: str  # as the engine is given it: a path, a hub id, a name in its store
    method: str = PLAIN  # one of the engine's `methods`
    draft: str | None = None
    draft_length: int | None = None
    p_min: float | None = None
    context: int | None = None  # tokens of prompt and answer, of one stream
    streams: int = 1  # requests at the same time
    draft_streams: int | None = None  # with more requests than this at the same time, plain decoding
    host: str = "127.0.0.1"
    port: int = 8080
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    nodes: int = 1  # machines
    program: str | None = None  # the engine's executable, where it is not on PATH
    extra: tuple[str, ...] = ()  # arguments passed on as they are, last
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # values of the engine's `secret_flags`
    start_limit_s: float = 600.0

    @property
    def api_key(self) -> str | None:
        """What the engine was told to ask for."""
        return self.secrets.get("--api-key")

    @property
    def url(self) -> str:
        """Where the engine is asked once it runs: an engine that listens everywhere is asked on this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Method:
    """A way to speculate that an engine knows. `like` are the drafters of Slipstream that do about the same."""

    name: str
    draft: Need = "unused"
    like: tuple[str, ...] = ()
    lengths: tuple[int, ...] = (2, 4, 8)  # draft lengths worth a try; empty where the engine takes none
    takes_p_min: bool = False
    takes_draft_streams: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument and why it has its value. A switch has no value."""

    flag: str
    value: str | None = None
    why: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        return (self.flag,) if self.value is None else (self.flag, self.value)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a start needs. `files` are written into the folder that `plan` was given, by relative name.

    `secret_env` and `secret_files` hold keys: `secrets.without_secrets` comes before anything is printed or written.
    """

    program: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # on top of this process's own
    cwd: str | None = None  # the folder that it runs in; None is the current one
    files: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_files: Mapping[str, str] = field(default_factory=dict, repr=False)  # removed once it is ready
    after: tuple[tuple[str, ...], ...] = ()  # commands that are run to their end once it is ready
    fallback: tuple[str, ...] = ()  # instead of `program` where that is not installed
    install: str = ""  # how to get it where neither is
    notes: tuple[str, ...] = ()  # what a reader should know beyond the single values

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.program, *(word for argument in self.arguments for word in argument.words))


@dataclass(frozen=True, slots=True)
class Speculation:
    """An engine's counters, in the words of `core/stats`: accepted / drafted, the target's own token left out."""

    num_drafted: int = 0
    num_accepted: int = 0
    num_drafts: int | None = None  # rounds that drafted; None where the engine does not say
    accepted_by_position: tuple[int, ...] = ()  # rounds that accepted this deep; empty where it does not say
    num_tokens: int | None = None  # all that were generated; None where it does not say

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    def since(self, before: Speculation) -> Speculation:
        """What was counted between two readings. Counters that went backwards (a restart) count from zero."""
        if self.num_drafted < before.num_drafted:
            return self
        drafts = None if self.num_drafts is None else self.num_drafts - (before.num_drafts or 0)
        earlier = [*before.accepted_by_position, *[0] * len(self.accepted_by_position)]
        by_position = tuple(now - then for now, then in zip(self.accepted_by_position, earlier, strict=False))
        return Speculation(
            num_drafted=self.num_drafted - before.num_drafted,
            num_accepted=self.num_accepted - before.num_accepted,
            num_drafts=drafts,
            accepted_by_position=by_position,
            num_tokens=None if self.num_tokens is None else self.num_tokens - (before.num_tokens or 0),
        )


@dataclass(frozen=True, slots=True)
class SpeculationState:
    """Whether a running engine speculates. `on` is None where it does not tell; `evidence` is what it said."""

    on: bool | None
    evidence: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a start, and what a line of the log holds once it is reached."""

    name: str
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Readiness:
    """`path` answers 200 when the engine can be asked. Stages are in the order of a start."""

    path: str = "/health"
    stages: tuple[Stage, ...] = ()

    def stage_of(self, line: str) -> str | None:
        """The stage that a line of the log shows; None where it shows none."""
        return next((stage.name for stage in self.stages if any(mark in line for mark in stage.marks)), None)


@dataclass(frozen=True, slots=True)
class Request:
    """What is posted. The answer is a stream of JSON events."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that could have stood here, and the logarithm of its probability."""

    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event adds to an answer. Fields that an event does not speak of stay as they are here."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None
    num_prompt_tokens: int | None = None
    num_reused: int | None = None  # prompt tokens found in the cache
    num_tokens: int | None = None  # of the whole answer
    speculation: Speculation | None = None  # of this answer alone, where the engine tells it
    candidates: tuple[tuple[Candidate, ...], ...] = ()  # per token of this piece, likeliest first


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

    def plan(self, settings: EngineSettings, folder: Path) -> Plan:
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

    def read_event(self, event: Mapping[str, Any]) -> Piece: ...

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
