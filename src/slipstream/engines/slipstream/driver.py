"""Slipstream's own server, started and measured like any other engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream import __version__
from slipstream.child import own_python
from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.drafters import OWN
from slipstream.engines.arguments import CommandLine
from slipstream.engines.driver import ExternalEngine, check_settings
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
from slipstream.engines.openai_api import openai_request, read_openai_event
from slipstream.engines.slipstream.flags import FLAGS
from slipstream.extras import install_command
from slipstream.parsing.log_patterns import Stage, StartLog

if TYPE_CHECKING:
    from slipstream.engines.client import Client

_LENGTHS = (4,)  # beside `auto`


class SlipstreamServer(ExternalEngine):
    name = "slipstream"
    version = __version__
    default_port = 8000
    keeps_seeds = True
    secret_variables: Mapping[str, str] = {"--api-key": "SLIPSTREAM_API_KEY"}
    default_drafter = OWN
    methods = (
        Method(OWN, lengths=_LENGTHS, adapts=True),
        Method("model", "required", lengths=_LENGTHS, adapts=True, takes_p_min=True, takes_options=True),
        Method("translate", "required", lengths=_LENGTHS, adapts=True, takes_p_min=True, takes_options=True),
        Method("head", "required", lengths=_LENGTHS, adapts=True, takes_options=True),
        Method("suffix", lengths=_LENGTHS, adapts=True, takes_options=True),
        Method("ngram", lengths=_LENGTHS, adapts=True, takes_options=True),
        Method("early-exit", lengths=_LENGTHS, adapts=True, takes_p_min=True, takes_options=True),
    )
    readiness = StartLog(
        path="/ready",
        stages=(
            Stage("loading the model", ("slipstream: loading",)),
            Stage("measuring", ("slipstream: measuring",)),
            Stage("listening", ("slipstream: serving at",)),
        ),
    )

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        method = check_settings(self, settings)
        line = CommandLine(FLAGS, settings.version)
        line.add("--model", settings.model, "the model that answers")
        line.add_if("--draft", settings.draft, "the model that drafts")
        options = settings.options or ("" if settings.p_min is None else f"p_min={settings.p_min:g}")
        drafter = method.name + (f"({options})" if options else "") if method else PLAIN
        line.add("--drafter", drafter, "how to draft")
        if settings.draft_length is not None:
            line.add("--policy", f"fixed({settings.draft_length})", "always this many tokens per step")
        line.add("--host", settings.host, "the address it listens on")
        line.add("--port", settings.port, "where")
        line.add_if("--context", settings.context, "tokens of prompt and answer of one stream")
        line.add_if("--max-streams", settings.streams, "requests at the same time")
        line.pass_on(settings.extra)
        return StartPlan(
            (settings.program, "serve") if settings.program else tuple(own_python("-m", "slipstream", "serve")),
            line.arguments,
            secret_env=self.secret_env(settings),
            install=install_command("server"),
        )

    def installed_version(self, program: str | None) -> str | None:
        return __version__ if program is None and find_spec("uvicorn") else None

    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        extras = {
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "ignore_eos": limits.ignore_eos,
            "cache_prompt": not cold,
        }
        asked = openai_request("", prompt, sampling, limits, extras, top)
        return Request(asked.path, {name: value for name, value in asked.body.items() if name != "model"})

    def read_event(self, event: Mapping[str, Any]) -> AnswerPiece:
        """The last event has the figures of the answer."""
        piece, figures = read_openai_event(event), event.get("slipstream")
        return replace(piece, speculation=_speculation(figures)) if figures and "drafted" in figures else piece

    def speculation_state(self, client: Client) -> SpeculationState:
        described = client.get_json("/v1/models")["data"][0].get("slipstream") or {}
        drafter = described.get("drafter")
        return SpeculationState(drafter is not None, f"/v1/models reports drafter: {drafter}")

    def read_speculation(self, client: Client) -> Speculation | None:
        return _speculation(client.get_json("/v1/slipstream/stats"))


def _speculation(figures: Mapping[str, Any]) -> Speculation:
    drafted_at = figures.get("drafted_by_position") or [0]
    return Speculation(
        figures["drafted"],
        figures["accepted"],
        drafted_at[0],
        tuple(figures.get("accepted_by_position") or ()),
        figures.get("tokens"),
    )


ENGINE = SlipstreamServer()
