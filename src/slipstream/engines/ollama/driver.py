"""Ollama: a Modelfile and its native API. Formats are from its source and documentation; it was not run here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.arguments import CommandLine
from slipstream.engines.driver import ExternalEngine, check_settings, logged_speculation
from slipstream.engines.engine_types import (
    AnswerPiece,
    EngineSettings,
    Method,
    Request,
    Speculation,
    SpeculationState,
    StartPlan,
)
from slipstream.engines.ollama.drafts import ONE_STREAM, architecture, file_here, gguf_here, has_mtp, is_draft
from slipstream.engines.ollama.flags import PARAMETERS
from slipstream.engines.ollama.logs import START
from slipstream.engines.versions import program_version
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.engines.client import Client

MODEL_NAME = "slipstream"  # name in the store of the model created from the Modelfile
_MODELFILE = "Modelfile"
_INSTALL = "https://ollama.com/download"
_TAKES = (
    "Ollama drafts only with MTP layers (--drafter mtp, or draft for a file of them) and DFlash files (--drafter draft)"
)
_ELSEWHERE = "slipstream launch llama-server --model {model} --draft {draft}"
# What llama.cpp's server, which runs the model, writes to Ollama's log.
_STARTED = re.compile(r'msg="starting llama-server".*')
_FAILED = "failed to initialize speculative decoding context"
_DRAFT_LINE = re.compile(r"draft acceptance = [\d.]+ \(\s*(\d+) accepted /\s*(\d+) generated\)")


class Ollama(ExternalEngine):
    name = "ollama"
    version = PARAMETERS.version
    default_port = 11434
    keeps_seeds = True
    hints: Mapping[str, str] = {
        "model": f"{_TAKES}. For an ordinary draft model: {_ELSEWHERE.format(model='MODEL', draft='DRAFT.gguf')} "
        "(MODEL can be ollama:NAME)"
    }
    methods = (
        Method("draft", "required", lengths=(2, 3, 4, 6, 8)),
        Method("mtp", lengths=(1, 2, 3, 4)),
    )
    readiness = START

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        """Starts `ollama serve` and creates a new model from the Modelfile; existing models are not changed."""
        method = check_settings(self, settings)
        if method:
            _require_draft(settings)
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
            notes=_notes(settings),
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

    def speculation_state(self, client: Client) -> SpeculationState:
        """From its log, which has the command line of the server that runs the model.

        Loads the model if that did not happen yet. Without a log, the model's description shows whether speculation
        was configured, not whether it is used.
        """
        if client.log:
            if not _STARTED.search(client.log_text()):
                client.post_json("/api/generate", {"model": MODEL_NAME, "stream": False})  # no prompt: only loads it
            state = _state_in(client.log_text())
            if state:
                return state
        shown = client.post_json("/api/show", {"model": MODEL_NAME}, client.timeouts.figures_s)
        asked = "draft_num_predict" in (shown.get("parameters") or "") or "\nDRAFT " in (shown.get("modelfile") or "")
        said = "/api/show names a draft" if asked else "/api/show has neither DRAFT nor draft_num_predict"
        return SpeculationState(None if asked else False, said)

    def read_speculation(self, client: Client) -> Speculation | None:
        """From its log: its API has no figures."""
        return logged_speculation(client, _DRAFT_LINE)


def _state_in(log: str) -> SpeculationState | None:
    """What the last start of a server in the log says; None if there was none."""
    starts = list(_STARTED.finditer(log))
    if not starts:
        return None
    kind = re.search(r"--spec-type (\S+)", starts[-1][0])
    if kind is None:
        return SpeculationState(False, "its log shows that it started llama-server without --spec-type")
    if _FAILED in log[starts[-1].end() :]:
        return SpeculationState(False, f'its log says "{_FAILED}"')
    return SpeculationState(True, f"its log shows that it started llama-server with --spec-type {kind[1]}")


def _require_draft(settings: EngineSettings) -> None:
    """Raises UsageError if the files are on this machine and Ollama can't draft with them."""
    target = gguf_here(settings.model)
    draft = file_here(settings.draft) if settings.draft else None
    if draft and settings.draft and not is_draft(draft):
        model = shlex.quote(str(target.path)) if target else settings.model
        instead = _ELSEWHERE.format(model=model, draft=shlex.quote(settings.draft))
        what = f"{settings.draft} is an ordinary model (architecture {architecture(draft)}, no MTP layers)"
        raise UsageError(
            f"{what}: Ollama could not load it as a draft. {_TAKES}. Run the pair with llama-server: {instead}"
        )
    if target and not settings.draft and not has_mtp(target):
        raise UsageError(
            f"{settings.model} has no MTP layers (architecture {architecture(target)}), so Ollama would decode "
            "plainly. Drafting without a model: slipstream launch llama-server "
            f"--model {shlex.quote(str(target.path))} --drafter ngram"
        )


def _notes(settings: EngineSettings) -> tuple[str, ...]:
    target = gguf_here(settings.model) if (settings.streams or 1) > 1 else None
    if target is None or architecture(target) not in ONE_STREAM:
        return ()
    return (f"Ollama answers one request at a time with {architecture(target)} models: the others wait",)


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
