"""TabbyAPI (ExLlama): a config.yml. Formats are from its public source; it was not run here (it needs a GPU)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.arguments import CommandLine
from slipstream.engines.driver import ExternalEngine, check_settings, logged_speculation
from slipstream.engines.engine_types import (
    Argument,
    EngineSettings,
    Method,
    Request,
    Speculation,
    SpeculationState,
    StartPlan,
)
from slipstream.engines.openai_api import openai_request
from slipstream.engines.tabbyapi.flags import SECTIONS
from slipstream.engines.tabbyapi.logs import START

if TYPE_CHECKING:
    from slipstream.engines.client import Client

_INSTALL = "clone theroyallab/tabbyAPI and run its start.sh once"
_CONFIG = "config.yml"
_ALL_GPUS = "splits every layer over all GPUs that it sees: CUDA_VISIBLE_DEVICES sets their number"
_PAGE = 256  # the cache is a multiple of it
# The line that it logs after every answer: "Draft: 40 / 64 tokens accepted (62.50%)".
# Its console wraps lines at words.
_DRAFT_LINE = re.compile(r"Draft:\s+(\d+)\s+/\s+(\d+)\s+tokens\s+accepted")
# What it logs while it loads a model: how it will draft, and that it is done.
_DRAFTING = (
    "Using draft model:",
    "Using main model MTP component for drafting",
    "Using n-gram drafting with minimum match length",
)
_LOADED = "Model successfully loaded."
_DYNAMIC = "_dynamic"  # methods that adapt the draft length to the acceptance


class TabbyApi(ExternalEngine):
    name = "tabbyapi"
    version = SECTIONS["model"].version
    default_port = 5000
    keeps_seeds = True
    takes = ("tensor_parallel",)
    methods = (
        Method("model", "required", like=("model",), lengths=(2, 3, 4, 6, 8)),
        Method("ngram", like=("ngram", "suffix"), lengths=(2, 4, 8)),
        Method("mtp", lengths=(1, 2, 3)),
        Method(f"model{_DYNAMIC}", "required", lengths=(4, 8)),
        Method(f"mtp{_DYNAMIC}", lengths=(2, 4)),
    )
    readiness = START

    def plan(self, settings: EngineSettings, folder: Path) -> StartPlan:
        """`program` is its start.sh or main.py.

        It takes the next port if this one is in use, and says so only in its log; `running` refuses such a port before.
        """
        method = check_settings(self, settings)
        program = settings.program or "start.sh"
        command = ("python", program) if program.endswith(".py") else (program,)
        arguments = (Argument("--config", str(folder / _CONFIG), "the file below"), *_passed_on(settings))
        return StartPlan(
            command,
            arguments,
            # Its main.py imports modules from its own folder; its console wraps lines at 80 characters.
            env={"PYTHONSAFEPATH": "", "TABBY_LOG_CONSOLE_WIDTH": "1000"},
            files={_CONFIG: _config(settings, method)},
            cwd=str(Path(program).parent) if settings.program else None,  # it looks for its own files there
            install=_INSTALL,
        )

    def request(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, *, cold: bool = True, top: int = 0
    ) -> Request:
        """Its prompt cache can't be turned off: `cold` has no effect."""
        extras: dict[str, Any] = {
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "ban_eos_token": limits.ignore_eos,
        }
        return openai_request("default", prompt, sampling, limits, extras, top)

    def speculation_state(self, client: Client) -> SpeculationState:
        """From its log: `/v1/model` has a field for the draft, but leaves it empty."""
        text = " ".join(client.log_text().split())
        said = next((line for line in _DRAFTING if line in text), None)
        if said:
            return SpeculationState(True, f'its log says "{said}"')
        if _DRAFT_LINE.search(text):
            return SpeculationState(True, "its log has drafted tokens for every answer")
        if _LOADED in text:
            return SpeculationState(False, "its log says that the model is loaded, and nothing of drafting")
        return SpeculationState(None, "it reports drafting only in its log, which is not known here")

    def read_speculation(self, client: Client) -> Speculation | None:
        """From its log: it publishes acceptance nowhere else."""
        return logged_speculation(client, _DRAFT_LINE)


def _config(settings: EngineSettings, method: Method | None) -> str:
    """config.yml with a reason next to every value."""
    sections = {
        "network": _network(settings),
        "logging": _section("logging", ("log_generation_params", False, "acceptance is logged without it")),
        "model": _model(settings),
        "draft_model": _draft(settings, method) if method else _no_draft(),
    }
    text = "\n".join(f"{name}:\n{_lines(arguments)}" for name, arguments in sections.items())
    return f"# python main.py --config THIS_FILE, in TabbyAPI's own folder, starts it\n{text}"


def _network(settings: EngineSettings) -> tuple[Argument, ...]:
    is_local = settings.host in ("127.0.0.1", "localhost", "::1")
    why = "reachable only from this machine" if is_local else "keys are in api_tokens.yml after the first start"
    return _section(
        "network",
        ("host", settings.host, "the address it listens on"),
        ("port", settings.port, "where"),
        ("disable_auth", is_local, why),
    )


def _model(settings: EngineSettings) -> tuple[Argument, ...]:
    path = Path(settings.model)
    cache = None
    if settings.context:
        cache = -(-settings.context * (settings.streams or 1) // _PAGE) * _PAGE
    return _section(
        "model",
        ("model_dir", path.parent, "where its models are"),
        ("model_name", path.name, "the model that answers"),
        ("max_seq_len", settings.context, "tokens of prompt and answer of one stream"),
        ("cache_size", cache, f"of all streams together, a multiple of {_PAGE}"),
        ("max_batch_size", settings.streams, "requests at the same time"),
        ("tensor_parallel", settings.tensor_parallel > 1 or None, _ALL_GPUS),
    )


def _draft(settings: EngineSettings, method: Method) -> tuple[Argument, ...]:
    path = Path(settings.draft) if settings.draft else None
    adapts = "its maximum adapts to the acceptance" if method.name.endswith(_DYNAMIC) else None
    return _section(
        "draft_model",
        ("draft_mode", method.name.removesuffix(_DYNAMIC), "the drafting method"),
        ("draft_model_dir", path and path.parent, "where its drafts are"),
        ("draft_model_name", path and path.name, "the model that drafts; without a name speculation is off"),
        ("draft_num_tokens", settings.draft_length, "drafted tokens per step"),
        ("dynamic_draft", adapts and True, adapts or ""),
    )


def _no_draft() -> tuple[Argument, ...]:
    """Written out, because it merges this file with the config.yml in its own folder."""
    return _section("draft_model", ("draft_mode", "disabled", "plain decoding, whatever its own config.yml says"))


def _section(name: str, *settings: tuple[str, object, str]) -> tuple[Argument, ...]:
    """Keys in the table of this section; those without a value are skipped."""
    line = CommandLine(SECTIONS[name])
    for key, value, why in settings:
        line.add_if(key, value, why)
    return line.arguments


def _lines(arguments: tuple[Argument, ...]) -> str:
    def shown(value: str) -> str:
        return value.lower() if value in ("True", "False") else value if value.isdigit() else json.dumps(value)

    return "".join(f"  {a.flag}: {shown(a.value or '')}  # {a.why}\n" for a in arguments)


def _passed_on(settings: EngineSettings) -> tuple[Argument, ...]:
    return tuple(Argument(word, why="passed on unchanged") for word in settings.extra)


ENGINE = TabbyApi()
