"""Memory of Slipstream's own engine, which depends on the backend that a model goes to.

`backends.choose_backend` decides when a model is loaded; `_chosen` foretells it from what is known of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipstream.models.gguf.config import ARCHITECTURES
from slipstream.models.sources.builtin import BUILTIN_NAMES
from slipstream.predict.gpus import Gpu
from slipstream.predict.machine import Machine
from slipstream.predict.memory import MB, EngineMemory
from slipstream.predict.sizes import Sizes

# Weights that are not quantised take 2 bytes on a GPU (bf16) and 4 on the CPU, where the cache is float32 too. The
# cache keeps what is outside a window.
TORCH = EngineMemory(
    "none", 600 * MB, 200 * MB, 512, 32, kv_types=("f16", "q8"), weight_bytes=2.0, cpu_weight_bytes=4.0,
    keeps_codes=True, gpu_keeps_codes=True, cpu_number_bytes=4.0, q8_number_bytes=1.25, keeps_windows=False,
    vendors=("nvidia", "amd"), package="torch",
)  # fmt: skip
# A window that drops old tokens could not be rewound, so Slipstream has llama.cpp keep the whole context.
LLAMA_CPP = EngineMemory("layers", 450 * MB, 0, 512, 512, keeps_windows=False, package="llama_cpp")
CODE_CAPABILITY = 8.0
BACKENDS = {"torch": TORCH, "llamacpp": LLAMA_CPP}


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """Slipstream as a user of memory; `engines.slipstream` has all the other facts."""

    memory: EngineMemory
    title: str = "Slipstream"


def own_engine(backend: str, weight_bytes: float | None, *, keeps_codes: bool, offloads: bool) -> OwnEngine:
    """The engine with a backend that is known, and weights of this many bytes; None: as stored."""
    held = {"weight_bytes": weight_bytes, "cpu_weight_bytes": weight_bytes}
    codes = {"keeps_codes": keeps_codes, "gpu_keeps_codes": keeps_codes}
    return OwnEngine(replace(BACKENDS[backend], **held, **codes, offloads=offloads))  # type: ignore[arg-type]


def _chosen(sizes: Sizes, machine: Machine | None) -> EngineMemory:
    engine = _backend(sizes, machine)
    if engine is TORCH and machine and not all(_multiplies_codes(gpu) for gpu in machine.gpus):
        return replace(engine, gpu_keeps_codes=False)
    return engine


def _multiplies_codes(gpu: Gpu) -> bool:
    """Its tensor cores multiply 8-bit codes; an unknown one is taken to be recent."""
    return gpu.vendor == "nvidia" and (gpu.compute_capability or CODE_CAPABILITY) >= CODE_CAPABILITY


def _backend(sizes: Sizes, machine: Machine | None) -> EngineMemory:
    if sizes.format != "gguf" or sizes.name in BUILTIN_NAMES:
        return TORCH
    torch_runs_it = sizes.architecture in ARCHITECTURES
    if machine is None:
        return TORCH if torch_runs_it else LLAMA_CPP
    if machine.llama_cpp is None:
        return TORCH
    if torch_runs_it and sizes.is_quantised and not (machine.gpus and machine.llama_cpp.sees_gpu):
        return TORCH
    has_nvidia = any(gpu.vendor == "nvidia" for gpu in machine.gpus)  # the only GPUs for which torch is preferred
    torch_sees_gpu = bool(has_nvidia and machine.torch and machine.torch.sees_gpu)
    return TORCH if torch_sees_gpu and torch_runs_it else LLAMA_CPP


OWN_ENGINE = OwnEngine(replace(TORCH, choose=_chosen))
