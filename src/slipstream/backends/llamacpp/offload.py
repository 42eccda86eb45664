"""OffloadReport: what llama.cpp put on which device, from its own log."""

from __future__ import annotations

import ctypes
import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.backends.llamacpp.library import ggml, library

log = logging.getLogger("slipstream")

_LAYERS = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_BUFFER = re.compile(r"(\S+) (?:model|KV|RS|compute) buffer size = +([\d.]+) MiB")
_ACCELERATORS = (1, 2)  # ggml_backend_dev_type: a GPU, an integrated GPU
_HOST_BUFFERS = ("CPU", "Host", "BLAS", "AMX")  # parts of the names of buffers in main memory


@dataclass(frozen=True, slots=True)
class LlamaGpu:
    """A GPU that this build of llama.cpp can use."""

    name: str  # as buffers are called: CUDA0, Metal, Vulkan0
    description: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class OffloadReport:
    build_offloads: bool  # the library has GPU support at all
    devices: tuple[LlamaGpu, ...]
    layers: int  # layers on GPUs; the output counts as one
    num_layers: int
    buffer_bytes: dict[str, int]  # by name of the buffer: weights, keys and values, scratch

    @property
    def gpu_bytes(self) -> dict[str, int]:
        return {n: size for n, size in self.buffer_bytes.items() if not any(part in n for part in _HOST_BUFFERS)}

    @property
    def device(self) -> str:
        """Where it runs, for tables."""
        return "+".join([*self.gpu_bytes, *(["cpu"] if self.layers < self.num_layers else [])]) or "cpu"

    def text(self) -> str:
        if not self.build_offloads:
            return "all on the CPU: this llama-cpp-python was built without GPU support"
        if not self.devices:
            return "all on the CPU: llama.cpp finds no GPU"
        names = {d.name: d.description for d in self.devices}
        used = ", ".join(f"{n} ({names.get(n, '?')}) {size / 1e6:.0f} MB" for n, size in self.gpu_bytes.items())
        return f"{self.layers} of {self.num_layers} layers on GPUs: {used or 'none'}"


def find_devices() -> tuple[LlamaGpu, ...]:
    """GPUs that the library itself lists."""
    lib = ggml()
    handles = [lib.ggml_backend_dev_get(i) for i in range(lib.ggml_backend_dev_count())]
    return tuple(_device(h) for h in handles if lib.ggml_backend_dev_type(h) in _ACCELERATORS)


def _device(handle: int) -> LlamaGpu:
    lib, free, total = ggml(), ctypes.c_size_t(), ctypes.c_size_t()
    lib.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    name, description = lib.ggml_backend_dev_name(handle), lib.ggml_backend_dev_description(handle)
    return LlamaGpu(name.decode(), description.decode(), free.value, total.value)


def read_report(lines: Sequence[str], num_layers: int) -> OffloadReport:
    """The report from the library's log of loading a model and creating its context."""
    layers, buffers = (0, num_layers + 1), dict[str, int]()
    for line in lines:
        if found := _LAYERS.search(line):
            layers = (int(found[1]), int(found[2]))
        elif found := _BUFFER.search(line):
            buffers[found[1]] = buffers.get(found[1], 0) + int(float(found[2]) * (1 << 20))
    return OffloadReport(
        build_offloads=bool(library().llama_supports_gpu_offload()),
        devices=find_devices(),
        layers=layers[0],
        num_layers=layers[1],
        buffer_bytes=buffers,
    )


def warn_of_unused_gpu(report: OffloadReport, wanted_layers: int) -> None:
    """Logs a warning if there is a GPU and the model, or a part of it, is not on it."""
    if report.layers < wanted_layers:
        log.warning(
            "%d layers were requested on a GPU, but %d are on one: %s", wanted_layers, report.layers, report.text()
        )
    elif report.layers == 0 and report.devices:
        log.warning(
            "running on the CPU although there is a GPU (%s): use --gpu-layers -1", report.devices[0].description
        )
    elif not report.build_offloads and shutil.which("nvidia-smi"):
        log.warning(
            "running on the CPU: there is an NVIDIA driver, but this llama-cpp-python was built without GPU support. "
            "Build it with CMAKE_ARGS=-DGGML_CUDA=on (docs/llamacpp.md)"
        )
