"""Any OpenAI-compatible server, by its address: it can be measured and compared, but not started from here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.driver import ExternalEngine
from slipstream.engines.engine_types import EngineSettings, Request, SpeculationState, StartPlan
from slipstream.engines.openai_api import openai_request
from slipstream.errors import UsageError
from slipstream.parsing.log_patterns import StartLog

if TYPE_CHECKING:
    from slipstream.engines.client import Client


class OpenAiServer(ExternalEngine):
    name = "openai"
    version = "the API of 2026"
    default_port = 8000
    keeps_seeds = False
    methods = ()
    readiness = StartLog(path="/v1/models")

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        raise UsageError("openai stands for a server that runs already: add --url, and --plain-url to compare with")

    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        """Only fields that the API itself has: a server may refuse others. So prompts may come from its cache."""
        return openai_request("default", prompt, sampling, limits, {}, top)

    def served_model(self, client: Client) -> str:
        """The first that it lists. Raises EngineRequestError."""
        listed = client.get_json("/v1/models").get("data") or [{}]
        return str(listed[0].get("id", "default"))

    def speculation_state(self, client: Client) -> SpeculationState:
        return SpeculationState(None, "the API does not report it")


ENGINE = OpenAiServer()
