"""SGLang: `sglang serve`. Formats are from its 0.5.23 wheel; it was not run here (it needs a GPU)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.arguments import CommandLine
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
from slipstream.engines.openai_api import openai_request, read_openai_event
from slipstream.engines.sglang.flags import FLAGS
from slipstream.engines.sglang.logs import START
from slipstream.engines.sglang.methods import BY_NAME, METHODS, SglangMethod
from slipstream.engines.versions import package_version
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.engines.client import Client

_INSTALL = "pip install sglang, in its own environment"
_SECRETS = "secrets.yml"


class SgLang(ExternalEngine):  # without `read_speculation`: its metrics are gauges, which can't be summed
    name = "sglang"
    version = FLAGS.version
    default_port = 30000
    keeps_seeds = False
    secret_flags = ("--api-key", "--admin-api-key")
    takes = ("tensor_parallel", "pipeline_parallel")
    methods = tuple(way.method for way in METHODS)
    readiness = START

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        method = check_settings(self, settings)
        way = BY_NAME[method.name] if method else None
        line = CommandLine(FLAGS, settings.version)
        line.add("--model-path", settings.model, "the model that answers")
        line.add("--host", settings.host, "the address it listens on")
        line.add("--port", settings.port, "where")
        line.add_if("--context-length", settings.context, "tokens of prompt and answer; less leaves more KV cache")
        line.add_if("--max-running-requests", settings.streams, "requests at the same time")
        if settings.tensor_parallel > 1:
            line.add("--tp-size", settings.tensor_parallel, "GPUs that share every layer")
        if settings.pipeline_parallel > 1:
            line.add("--pp-size", settings.pipeline_parallel, "groups of layers, one after the other")
        line.add("--enable-metrics", why="publishes figures at /metrics")
        if way:
            _add_speculation(line, way, settings)
        if settings.secrets:
            if "--config" in settings.extra:
                raise UsageError("sglang reads keys from one --config file: put the API key into your file")
            line.add("--config", folder / _SECRETS, "keys, in a file that only this user can read")
        line.pass_on(settings.extra)
        return StartPlan(
            (settings.program or "sglang", "serve"),
            line.arguments,
            secret_files=_secrets(settings),
            install=_INSTALL,
            notes=(way.needs,) if way and way.needs else (),
        )

    def installed_version(self, program: str | None) -> str | None:
        return package_version(program or "sglang", ("sglang",))

    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        extras: dict[str, Any] = {
            "top_k": sampling.top_k or -1,  # 0 is not a valid value
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "ignore_eos": limits.ignore_eos,
            "return_spec_tokens_details": True,
        }
        if limits.stop_tokens:
            extras["stop_token_ids"] = sorted(limits.stop_tokens)
        if cold:
            extras["cache_salt"] = uuid.uuid4().hex  # prompts with different salts share no entries in the radix cache
        return openai_request("default", prompt, sampling, limits, extras, top)

    def read_event(self, event: Mapping[str, Any]) -> AnswerPiece:
        """`sglext` comes in a separate event, before the usage; /generate has the same values in `meta_info`."""
        piece = read_openai_event(event)
        told = (event.get("sglext") or {}).get("spec_tokens_details") or event.get("meta_info")
        if isinstance(told, list):
            told = told[0] if told else None
        return replace(piece, speculation=_speculation_of(told)) if told and "spec_verify_ct" in told else piece

    def speculation_state(self, client: Client) -> SpeculationState:
        """From the configuration that the server reports."""
        algorithm = client.get_json("/server_info").get("speculative_algorithm")
        return SpeculationState(
            algorithm not in (None, "", "NONE"), f"/server_info reports speculative_algorithm: {algorithm}"
        )


def _secrets(settings: EngineSettings) -> dict[str, str]:
    """There is no environment variable for its keys, but a config file may have them: `api-key: KEY`."""
    lines = [f"{flag.removeprefix('--')}: {json.dumps(value)}\n" for flag, value in settings.secrets.items()]
    return {_SECRETS: "".join(lines)} if lines else {}


def _add_speculation(line: CommandLine, way: SglangMethod, settings: EngineSettings) -> None:
    length = settings.draft_length
    if way.needs_length and length is None:
        raise UsageError(f'sglang {way.name} has no default draft length: add --policy "fixed({way.lengths[0]})"')
    line.add("--speculative-algorithm", way.algorithm, "the drafting method")
    line.add_if("--speculative-draft-model-path", settings.draft, "the model or head that drafts")
    more = (way.more,) if way.more else ()
    for argument in (*more, *(way.length_arguments(length) if length else ())):
        line.add(argument.flag, argument.value, argument.why)


def _speculation_of(told: Mapping[str, Any]) -> Speculation:
    return Speculation(
        num_drafted=told.get("spec_num_proposed_drafts") or 0,
        num_accepted=told.get("spec_num_correct_drafts") or 0,
        num_drafts=told.get("spec_verify_ct"),
        accepted_by_position=accepted_by_position(told.get("spec_correct_drafts_histogram") or ()),
    )


ENGINE = SgLang()
