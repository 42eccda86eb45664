"""External engines with their own decoding loop: vLLM, llama-server, SGLang, TabbyAPI, Ollama. `flags` has their flags.

To add an engine, add a file with an `ENGINE` and an entry here, or an entry point in another package that is such an
object (with `weights = "gguf"` if it reads GGUF files).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, cast

from slipstream.errors import UsageError
from slipstream.plugins import also_installed, find_plugin

if TYPE_CHECKING:
    from slipstream.engines.engine import ExternalEngine


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine's module, the weights it reads, and its name in the doctor (None: the doctor has no checks for it)."""

    module: str
    weights: Literal["gguf", "folder"]
    in_doctor: str | None


ENTRIES = {
    "vllm": Entry("vllm", "folder", "vllm"),
    "llama-server": Entry("llama_server", "gguf", "llama.cpp"),
    "sglang": Entry("sglang", "folder", "sglang"),
    "tabbyapi": Entry("tabbyapi", "folder", "exllama"),
    "ollama": Entry("ollama", "gguf", "ollama"),
}


def find_entry(name: str) -> Entry:
    """Raises UsageError with the valid names."""
    if name in ENTRIES:
        return ENTRIES[name]
    engine = find_engine(name)
    return Entry(type(engine).__module__, getattr(engine, "weights", "folder"), in_doctor=None)


def find_engine(name: str) -> ExternalEngine:
    """The engine of this name; imports its module. Raises UsageError with the valid names."""
    if name in ENTRIES:
        return cast("ExternalEngine", import_module(f"slipstream.engines.{ENTRIES[name].module}").ENGINE)
    from slipstream.engines.engine import ExternalEngine

    plugin = find_plugin("engine", name)
    if plugin is None:
        known = f"{', '.join(ENTRIES)}{also_installed('engine')}"
        raise UsageError(f"unknown engine {name!r}; expected {known}")
    engine: ExternalEngine = plugin.checked(plugin.load(), ExternalEngine)
    if engine.name != name:
        raise UsageError(f"the engine {name!r} of {plugin.package} calls itself {engine.name!r}: the names must agree")
    return engine
