"""EngineFacts: what is known of an engine without running it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from slipstream.engines.container_image import EngineImage
from slipstream.findings import Finding
from slipstream.predict.memory import EngineMemory
from slipstream.vocabularies.comparison import Pair


@dataclass(frozen=True, slots=True)
class EngineFacts:
    name: str
    title: str  # in texts
    weights: Literal["gguf", "folder"]  # what it reads first of all
    memory: EngineMemory
    quantisations: Mapping[str, str]  # method: what limits it, "" if nothing does; one that is missing is not supported
    best_weights: str  # what to use if the engine can't load the given weights
    check_vocabulary: Callable[[Pair], Iterator[Finding]]  # what its own start-up check finds, and what it overlooks
    check_draft: Callable[[str | None, str], list[Finding]] = lambda target, draft: []  # by the files, not the tokens
    aliases: tuple[str, ...] = ()
    also_gguf: bool = False  # reads GGUF files too, if `weights` are folders
    finds_models: bool = True  # takes the hub's names, or those of its own store
    has_our_names: bool = False  # built-in models and Ollama's, by the names that Slipstream has for them
    least_capability: float = 0.0  # compute capability of the oldest NVIDIA GPU
    has_own_kernels: bool = False  # for quantised weights: it does not need the GPUs that vLLM's kernels need
    uses_torch: bool = False
    uses_llama_cpp_python: bool = False
    image: EngineImage | None = None  # None: no manifests for containers
