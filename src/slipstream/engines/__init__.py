"""Engines that own their loop: vLLM, llama-server, SGLang, TabbyAPI, Ollama. `flags` says what each of them takes.

A new engine is a file with an `ENGINE` in it, and a line here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.engines.engine import ExternalEngine

_MODULES = {
    "vllm": "vllm",
    "llama-server": "llama_server",
    "sglang": "sglang",
    "tabbyapi": "tabbyapi",
    "ollama": "ollama",
}
ENGINE_NAMES = tuple(_MODULES)


def find_engine(name: str) -> ExternalEngine:
    """The engine of this name; its module is only imported here. Raises UsageError that lists the valid names."""
    if name not in _MODULES:
        raise UsageError(f"no engine {name!r} can be driven from here; expected {', '.join(ENGINE_NAMES)}")
    return cast("ExternalEngine", import_module(f"slipstream.engines.{_MODULES[name]}").ENGINE)
