"""The platform and the kind of model file that a log is from: what helps on one does not on another."""

from __future__ import annotations

from slipstream.parsing.log_scan import hits

# Texts that programs print on one platform, or for one kind of file, only.
_MARKS = {
    "AMD": (
        "ROCm",
        "rocm",
        "HIP error",
        "hipError",
        "HIP out of memory",
        "AMD Radeon",
        "gfx1",
        "gfx9",
        "amdgpu",
        "AMDGPU",
        "hipMalloc",
        "hipMemcpy",
        "hipblas",
        "rocBLAS",
    ),
    "Vulkan": ("ggml_vulkan", "Vulkan", "vk::", "vulkan"),
    "Metal": ("ggml_metal", "ggml-metal", "kIOGPUCommandBuffer", "Metal KV buffer", "MPS backend"),
    "Intel": ("ggml_sycl", "SYCL", "XPU out of memory", "oneAPI", "level-zero", "level_zero"),
    "Windows": (
        ":\\Users",
        ":\\Program",
        ":\\a\\ollama",
        "_windows.go",
        "NTSTATUS",
        "0xc0000",
        ".dll",
        "WinError",
        "Only one usage of each socket",
        "C:\\",
    ),
    "GGUF": (".gguf", "GGUF", "gguf_", "llama.cpp", "llama_model", "ggml_", "pre-tokenizer type"),
}


def platforms_in(text: str) -> set[str]:
    return {name for name, marks in _MARKS.items() if any(next(hits(text, mark, None), None) for mark in marks)}
