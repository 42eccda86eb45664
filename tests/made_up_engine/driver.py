from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from made_up_engine.flags import FLAGS
from made_up_engine.logs import START
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
from slipstream.engines.openai_api import openai_request, read_openai_event

if TYPE_CHECKING:
    from slipstream.engines.client import Client


class MadeUp(ExternalEngine):
    name = "made-up"
    version = FLAGS.version
    default_port = 9999
    keeps_seeds = True
    methods = (Method("guess", like=("ngram", "suffix")),)
    readiness = START

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        method = check_settings(self, settings)
        line = CommandLine(FLAGS)
        line.add("--model", settings.model, "the model that answers")
        line.add("--port", settings.port)
        if method:
            line.add("--guesses", settings.draft_length or 3, "guessed tokens per step")
        line.pass_on(settings.extra)
        program = ("made-up",) if settings.program == "made-up" else (sys.executable, str(SERVER))
        return StartPlan(program, line.arguments)

    def installed_version(self, program: str | None) -> str | None:
        return "1.0"

    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        return openai_request("default", prompt, sampling, limits, {}, top)

    def read_event(self, event: Mapping[str, Any]) -> AnswerPiece:
        piece = read_openai_event(event)
        return replace(piece, speculation=Speculation(*event["guessed"])) if "guessed" in event else piece

    def speculation_state(self, client: Client) -> SpeculationState:
        return SpeculationState(None, "it does not say")


SERVER = Path(__file__).with_name("server.py")
ENGINE = MadeUp()
