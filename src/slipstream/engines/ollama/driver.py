"""Ollama: a Modelfile and its native API. Formats are from its public documentation; no server was run here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.arguments import CommandLine
from slipstream.engines.driver import check_settings
from slipstream.engines.engine_types import (
    AnswerPiece,
    EngineSettings,
    Method,
    Request,
    Speculation,
    SpeculationState,
    StartPlan,
)
from slipstream.engines.ollama.flags import PARAMETERS
from slipstream.engines.ollama.logs import START
from slipstream.engines.versions import program_version

if TYPE_CHECKING:
    from slipstream.engines.client import Client

MODEL_NAME = "slipstream"  # name in the store of the model created from the Modelfile
_MODELFILE = "Modelfile"
_INSTALL = "https://ollama.com/download"


class Ollama:
    name = "ollama"
    version = PARAMETERS.version
    default_port = 11434
    keeps_seeds = True
    secret_flags = ()
    takes = ("context",)
    hints: Mapping[str, str] = {}
    methods = (
        Method("draft", "required", like=("model",), lengths=(2, 3, 4, 6, 8)),
        Method("mtp", lengths=(1, 2, 3, 4)),
    )
    readiness = START

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        """Starts `ollama serve` and creates a new model from the Modelfile; existing models are not changed."""
        method = check_settings(self, settings)
        program = settings.program or "ollama"
        env = {"OLLAMA_HOST": f"{settings.host}:{settings.port}"}
        if settings.streams:
            env["OLLAMA_NUM_PARALLEL"] = str(settings.streams)
        return StartPlan(
            (program, "serve"),
            env=env,
            files={_MODELFILE: _modelfile(settings, method)},
            after=((program, "create", MODEL_NAME, "-f", str(folder / _MODELFILE)),),
            install=_INSTALL,
        )

    def installed_version(self, program: str | None) -> str | None:
        return program_version(program or "ollama", r"version is (\S+)")

    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        """Uses the native API, because only that has timings. The prompt cache is always on: `cold` has no effect."""
        options = {
            "num_predict": limits.max_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "seed": sampling.seed,
            **({"stop": list(limits.stop)} if limits.stop else {}),
        }
        body: dict[str, Any] = {"model": MODEL_NAME, "stream": True, "options": options}
        if top:
            body |= {"logprobs": True, "top_logprobs": top}
        if isinstance(prompt, str):
            return Request("/api/generate", body | {"prompt": prompt, "raw": True})
        return Request("/api/chat", body | {"messages": [dict(message) for message in prompt]})

    def read_event(self, event: Mapping[str, Any]) -> AnswerPiece:
        """The last event (`done`) has the counts, but nothing about drafts."""
        text = event.get("response") or (event.get("message") or {}).get("content") or ""
        if not event.get("done"):
            return AnswerPiece(text)
        return AnswerPiece(
            text,
            finish_reason=event.get("done_reason") or "stop",
            num_prompt_tokens=event.get("prompt_eval_count"),
            num_tokens=event.get("eval_count"),
        )

    def speculation_state(self, client: Client, settings: EngineSettings) -> SpeculationState:
        """From the model's description: it shows whether speculation was configured, not whether it is used."""
        shown = client.post_json("/api/show", {"model": MODEL_NAME}, client.timeouts.figures_s)
        asked = "draft_num_predict" in (shown.get("parameters") or "") or "\nDRAFT " in (shown.get("modelfile") or "")
        said = "/api/show names a draft" if asked else "/api/show has neither DRAFT nor draft_num_predict"
        return SpeculationState(None if asked else False, said)

    def read_speculation(self, client: Client) -> Speculation | None:
        return None


def _modelfile(settings: EngineSettings, method: Method | None) -> str:
    lines = [f"# ollama create {MODEL_NAME} -f {_MODELFILE} creates a model from this file"]
    lines += ["# the model that answers", f"FROM {settings.model}"]
    if method and settings.draft:
        lines += ["# the model that drafts", f"DRAFT {settings.draft}"]
    line = CommandLine(PARAMETERS)
    line.add_if("num_ctx", settings.context, "tokens of prompt and answer of one stream")
    if method:
        length = settings.draft_length or (None if settings.draft else method.lengths[-1])
        line.add_if("draft_num_predict", length, "drafted tokens per step; without it a built-in head is not used")
    for argument in line.arguments:
        lines += [f"# {argument.why}", f"PARAMETER {argument.flag} {argument.value}"]
    return "\n".join(lines) + "\n"


ENGINE = Ollama()
