"""What goes to an engine and comes back from it: settings, plans, requests, counters, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
class StartPlan:
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
class TokenCandidate:
    """A token that could have stood here, and the logarithm of its probability."""

    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """What one event adds to an answer. Fields that an event does not speak of stay as they are here."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None
    num_prompt_tokens: int | None = None
    num_reused: int | None = None  # prompt tokens found in the cache
    num_tokens: int | None = None  # of the whole answer
    speculation: Speculation | None = None  # of this answer alone, where the engine tells it
    candidates: tuple[tuple[TokenCandidate, ...], ...] = ()  # per token of this piece, likeliest first
