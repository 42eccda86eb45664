"""Memory of Slipstream's own engine, which depends on the backend that a model goes to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipstream.backend_choice import CODES_CAPABILITY, BackendFacts, best_backend
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
BACKEND_MEMORY = {"torch": TORCH, "llamacpp": LLAMA_CPP}


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """Slipstream as a user of memory; `engines.slipstream` has all the other facts."""

    memory: EngineMemory
    title: str = "Slipstream"


def own_engine(backend: str, weight_bytes: float | None, *, keeps_codes: bool, offloads: bool) -> OwnEngine:
    """The engine with a backend that is known, and weights of this many bytes; None: as stored."""
    held = {"weight_bytes": weight_bytes, "cpu_weight_bytes": weight_bytes}
    codes = {"keeps_codes": keeps_codes, "gpu_keeps_codes": keeps_codes}
    return OwnEngine(replace(BACKEND_MEMORY[backend], **held, **codes, offloads=offloads))  # type: ignore[arg-type]


def _chosen(sizes: Sizes, machine: Machine | None) -> EngineMemory:
    engine = BACKEND_MEMORY[best_backend(_predicted(sizes, machine)).backend]
    if engine is TORCH and machine and not all(_multiplies_codes(gpu) for gpu in machine.gpus):
        return replace(engine, gpu_keeps_codes=False)
    return engine


def _multiplies_codes(gpu: Gpu) -> bool:
    """Its tensor cores multiply 8-bit codes; an unknown one is taken to be recent."""
    return gpu.vendor == "nvidia" and (gpu.compute_capability or CODES_CAPABILITY) >= CODES_CAPABILITY


def _predicted(sizes: Sizes, machine: Machine | None) -> BackendFacts:
    """What `backends.choose_backend` would look up. No machine: all packages are taken to be there, and a GPU."""
    torch, llama_cpp, gpus = (machine.torch, machine.llama_cpp, machine.gpus) if machine else (None, None, ())
    torch_runs_it = sizes.architecture in ARCHITECTURES
    has_nvidia = any(gpu.vendor == "nvidia" for gpu in gpus)
    return BackendFacts(
        is_builtin=lambda: sizes.name in BUILTIN_NAMES,
        has_llama_cpp=lambda: machine is None or llama_cpp is not None,
        is_gguf=lambda: sizes.format == "gguf",
        needs_layers=lambda: False,
        torch_has_gpu=lambda: machine is None or bool(has_nvidia and torch and torch.sees_gpu),
        torch_runs_it=lambda: torch_runs_it,
        llama_cpp_has_gpu=lambda: bool(gpus and llama_cpp and llama_cpp.sees_gpu),
        torch_runs_codes=lambda: torch_runs_it and sizes.is_quantised and bool(machine and machine.has_compiler),
    )


OWN_ENGINE = OwnEngine(replace(TORCH, choose=_chosen))
