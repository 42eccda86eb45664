"""Any OpenAI-compatible server, by its address: it can be measured and compared, but not started from here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.driver import EngineDefaults
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
from slipstream.errors import UsageError
from slipstream.parsing.log_patterns import StartLog

if TYPE_CHECKING:
    from slipstream.engines.client import Client


class OpenAiServer(EngineDefaults):
    name = "openai"
    version = "the API of 2026"
    default_port = 8000
    keeps_seeds = False
    methods: tuple[Method, ...] = ()
    readiness = StartLog(path="/v1/models")

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        raise UsageError("openai stands for a server that runs already: add --url, and --plain-url to compare with")

    def installed_version(self, program: str | None) -> str | None:
        return None

    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        """Only fields that the API itself has: a server may refuse others. So prompts may come from its cache."""
        return openai_request("default", prompt, sampling, limits, {}, top)

    def served_model(self, client: Client) -> str:
        """The first that it lists. Raises EngineRequestError."""
        listed = client.get_json("/v1/models").get("data") or [{}]
        return str(listed[0].get("id", "default"))

    def read_event(self, event: Mapping[str, Any]) -> AnswerPiece:
        return read_openai_event(event)

    def speculation_state(self, client: Client, settings: EngineSettings) -> SpeculationState:
        return SpeculationState(None, "the API does not report it")

    def read_speculation(self, client: Client) -> Speculation | None:
        return None


ENGINE = OpenAiServer()
