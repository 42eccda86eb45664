"""Data types of external engines: settings, plans, requests, counters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from slipstream.errors import UsageError

PLAIN = "none"  # the method of plain decoding, in every engine
Need = Literal["required", "optional", "unused"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of an engine, in terms that all engines share. None leaves a value to the engine."""

    model: str  # as passed to the engine: a path, a hub id, a name in its store
    method: str = PLAIN  # one of the engine's `methods`
    draft: str | None = None
    draft_length: int | None = None
    p_min: float | None = None
    options: str = ""  # of a method that takes them: `width=3`
    context: int | None = None  # tokens of prompt and answer, of one stream
    streams: int | None = None  # requests at the same time
    draft_streams: int | None = None  # with more requests than this at the same time, speculation is off
    host: str = "127.0.0.1"
    port: int = 8080
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    nodes: int = 1  # machines
    program: str | None = None  # the engine's executable, if it is not on PATH
    version: str | None = None  # of the installed engine; None: that of the flags table
    extra: tuple[str, ...] = ()  # arguments passed on unchanged, last
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # values of the engine's `secret_flags`
    start_limit_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("context", "streams", "tensor_parallel", "pipeline_parallel", "nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value}; expected 1 or more")

    @property
    def api_key(self) -> str | None:
        """The API key that the engine requires."""
        return self.secrets.get("--api-key")

    @property
    def url(self) -> str:
        """The address for requests: for an engine that listens on all interfaces, the local one."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Method:
    """A speculation method of an engine. `like` are the Slipstream drafters that do about the same.

    `missing`: why the engine lists the method but can't run it. `needs_arguments`: engine flags that the user has to
    pass with --engine-args, because Slipstream has no option for them.
    """

    name: str
    draft: Need = "unused"
    like: tuple[str, ...] = ()
    lengths: tuple[int, ...] = (2, 4, 8)  # draft lengths to try; empty if the engine has no such setting
    adapts: bool = False  # the length, where none is given
    takes_p_min: bool = False
    takes_options: bool = False  # as a drafter has them, p_min too
    takes_draft_streams: bool = False
    missing: str = ""
    needs_arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument and the reason for its value. A switch has no value."""

    flag: str
    value: str | None = None
    why: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        return (self.flag,) if self.value is None else (self.flag, self.value)


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Everything needed to start an engine. `files` are written into the folder passed to `plan`, by relative name.

    `secret_env` and `secret_files` contain keys: use `secrets.without_secrets` before printing or writing a plan.
    """

    program: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # on top of this process's own
    cwd: str | None = None  # its working folder; None is the current one
    files: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_files: Mapping[str, str] = field(default_factory=dict, repr=False)  # removed once it is ready
    after: tuple[tuple[str, ...], ...] = ()  # commands to run when it is ready
    fallback: tuple[str, ...] = ()  # used instead of `program` if that is not installed
    install: str = ""  # how to install it, if neither is installed
    notes: tuple[str, ...] = ()  # notes for the reader

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.program, *(word for argument in self.arguments for word in argument.words))


@dataclass(frozen=True, slots=True)
class Speculation:
    """An engine's counters, in the terms of `core/stats`: accepted / drafted, without the target's own token."""

    num_drafted: int = 0
    num_accepted: int = 0
    num_drafts: int | None = None  # rounds that drafted; None if the engine does not report it
    accepted_by_position: tuple[int, ...] = ()  # rounds that accepted to this depth; empty if not reported
    num_tokens: int | None = None  # all generated tokens; None if not reported

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    def since(self, before: Speculation) -> Speculation:
        """The difference between two readings. Counters that decreased (a restart) count from zero."""
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


def accepted_by_position(histogram: Sequence[int]) -> tuple[int, ...]:
    """`Speculation.accepted_by_position` of a histogram: rounds by the number of accepted tokens, none first."""
    return tuple(itertools.accumulate(reversed(histogram[1:])))[::-1]


@dataclass(frozen=True, slots=True)
class SpeculationState:
    """Whether a running engine speculates. `on` is None if it does not report it; `evidence` is what it reported."""

    on: bool | None
    evidence: str


@dataclass(frozen=True, slots=True)
class Request:
    """A POST request. The response is a stream of JSON events."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TokenCandidate:
    """An alternative token at a position, and the logarithm of its probability."""

    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """What one event adds to an answer. Fields that the event does not have keep their defaults."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None
    num_prompt_tokens: int | None = None
    num_reused: int | None = None  # prompt tokens found in the cache
    num_tokens: int | None = None  # of the whole answer
    speculation: Speculation | None = None  # of this answer alone, if the engine reports it
    candidates: tuple[tuple[TokenCandidate, ...], ...] = ()  # per token of this piece, most likely first
