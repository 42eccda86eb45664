"""Which backend runs a model: one rule over facts. `backends` looks them up when it loads a model, and `own_memory`
takes them from what is known of a model and a machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

CODES_CAPABILITY = 8  # compute capability of the first GPUs whose tensor cores multiply 8-bit codes in groups of 32
Fact = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """What the choice depends on. Each is asked when the rule needs it and no earlier: torch takes long to import."""

    is_builtin: Fact
    has_llama_cpp: Fact  # llama-cpp-python is installed
    is_gguf: Fact
    needs_layers: Fact  # a drafter needs parts of the model, such as early-exit
    torch_has_gpu: Fact  # a GPU of NVIDIA's that torch sees and may use
    torch_runs_it: Fact
    llama_cpp_has_gpu: Fact  # any GPU that llama.cpp sees and may use, such as Apple's
    torch_runs_codes: Fact  # the CPU kernels multiply with all its matrices as they are stored, and can be built


@dataclass(frozen=True, slots=True)
class BackendChoice:
    backend: str
    reason: str
    was_open: bool = True  # there was a choice: both backends could run it


def best_backend(facts: BackendFacts) -> BackendChoice:
    if facts.is_builtin():
        return BackendChoice("torch", "there the built-in model gives the same text on every machine", was_open=False)
    if not facts.has_llama_cpp():
        return BackendChoice("torch", "llama-cpp-python is not installed", was_open=False)
    if not facts.is_gguf():
        return BackendChoice("torch", "safetensors", was_open=False)
    if facts.needs_layers():
        return BackendChoice("torch", "the drafter uses parts of the model, which llama.cpp does not provide")
    if facts.torch_has_gpu():
        if facts.torch_runs_it():
            return BackendChoice("torch", "a dense model of the Llama family, and the machine has a GPU")
        return BackendChoice("llamacpp", "a GGUF file with an architecture that the torch backend can't run")
    if not facts.llama_cpp_has_gpu() and facts.torch_runs_codes():
        return BackendChoice("torch", "quantised weights run as they are stored, faster than with llama.cpp")
    return BackendChoice("llamacpp", "a GGUF file that is not quantised or that torch can't run, and no GPU for torch")
