"""External engines with their own decoding loop: vLLM, llama-server, SGLang, TabbyAPI, Ollama. `flags` has their flags.

To add an engine, add a file with an `ENGINE` and an entry here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, cast

from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.engines.engine import ExternalEngine


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine's module, the weights it reads, and its name in the doctor."""

    module: str
    weights: Literal["gguf", "folder"]
    in_doctor: str


ENTRIES = {
    "vllm": Entry("vllm", "folder", "vllm"),
    "llama-server": Entry("llama_server", "gguf", "llama.cpp"),
    "sglang": Entry("sglang", "folder", "sglang"),
    "tabbyapi": Entry("tabbyapi", "folder", "exllama"),
    "ollama": Entry("ollama", "gguf", "ollama"),
}


def find_entry(name: str) -> Entry:
    """Raises UsageError with the valid names."""
    if name not in ENTRIES:
        raise UsageError(f"unknown engine {name!r}; expected {', '.join(ENTRIES)}")
    return ENTRIES[name]


def find_engine(name: str) -> ExternalEngine:
    """The engine of this name; imports its module. Raises UsageError with the valid names."""
    return cast("ExternalEngine", import_module(f"slipstream.engines.{find_entry(name).module}").ENGINE)
