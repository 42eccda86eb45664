"""Engines that own their loop: vLLM, llama-server, SGLang, TabbyAPI, Ollama. `flags` says what each of them takes.

A new engine is a file with an `ENGINE` in it, and a line here.
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
    """Where an engine's file is, what weights it reads, and what the doctor calls it."""

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
    """Raises UsageError that lists the valid names."""
    if name not in ENTRIES:
        raise UsageError(f"no engine {name!r} can be driven from here; expected {', '.join(ENTRIES)}")
    return ENTRIES[name]


def find_engine(name: str) -> ExternalEngine:
    """The engine of this name; its module is only imported here. Raises UsageError that lists the valid names."""
    return cast("ExternalEngine", import_module(f"slipstream.engines.{find_entry(name).module}").ENGINE)
