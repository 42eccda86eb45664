"""Checks of the machine: what limits its speed, and whether the model really runs on the GPU."""

from __future__ import annotations

import re

from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding, rule
from slipstream.predict.gpus import Gpu
from slipstream.predict.machine import Machine
from slipstream.predict.packages import InstalledPackage, Packages

LITTLE_MEMORY = 2 << 30

# The oldest Linux driver for each CUDA version, from CUDA's release notes.
MIN_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 65)}

NO_GPU = rule(
    "machine-no-gpu", "note", "No GPU was found",
    "Models run on the CPU here. The speed is limited by reading weights from main memory. Verifying several drafted "
    "tokens at once costs more than on a GPU, so speculation gains less.",
    "Nothing to do if this machine has no GPU. If it has one, install its driver (nvidia-smi must list it); start a "
    "container with --gpus all.",
)  # fmt: skip
TORCH_CPU_BUILD = rule(
    "machine-torch-cpu-build", "slows", "torch was built without support for the GPU",
    "This torch has no CUDA or ROCm support: everything runs on the CPU, regardless of the settings.",
    "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{wheel}",
)  # fmt: skip
TORCH_OLD_DRIVER = rule(
    "machine-driver-too-old", "blocks", "The GPU driver is older than torch's CUDA",
    "torch was built for CUDA {cuda}, which needs driver {needed} or newer; with the installed driver, no program "
    "built for that CUDA version starts.",
    "Update the NVIDIA driver to {needed} or newer, or install a torch for an older CUDA: "
    "pip install torch --index-url https://download.pytorch.org/whl/cu118",
)  # fmt: skip
TORCH_SEES_NONE = rule(
    "machine-gpu-invisible", "blocks", "nvidia-smi lists a GPU that CUDA programs can't see",
    "The driver's CUDA library finds no device: CUDA_VISIBLE_DEVICES hides it, or the container has nvidia-smi but "
    "not the compute libraries.",
    "Unset CUDA_VISIBLE_DEVICES; in a container use --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
)  # fmt: skip
LLAMA_CPP_CPU_BUILD = rule(
    "machine-llama-cpp-cpu-build", "slows", "llama-cpp-python was built without support for the GPU",
    "llama_supports_gpu_offload() is false: n_gpu_layers is accepted but has no effect, and every layer runs on the "
    "CPU.",
    'CMAKE_ARGS="{flags}" pip install --force-reinstall --no-cache-dir llama-cpp-python',
)  # fmt: skip
CAPABILITY = rule(
    "machine-compute-capability", "blocks", "The GPU is older than the engine needs",
    "{engine} needs compute capability {needed} or newer.",
    "Use an engine that supports this GPU (llama.cpp supports 5.0 and newer), or another GPU.",
)  # fmt: skip
NO_BF16 = rule(
    "machine-no-bf16", "note", "The GPU has no bfloat16 and no FlashAttention 2",
    "GPUs below compute capability 8.0 have no bfloat16, FlashAttention 2 or Marlin kernels: engines refuse --dtype "
    "bfloat16 and fall back to slower attention and AWQ/GPTQ kernels.",
    "Use --dtype half (float16). For AWQ in vLLM add --quantization awq; vLLM selects another attention backend "
    "automatically.",
)  # fmt: skip
NO_FP8 = rule(
    "machine-no-fp8", "note", "The GPU has no FP8",
    "FP8 arithmetic needs compute capability 8.9. Below it, engines refuse FP8 checkpoints or only store the weights "
    "in FP8.",
    "Use AWQ, GPTQ or GGUF instead of an FP8 checkpoint.",
)  # fmt: skip
LITTLE_GPU_MEMORY = rule(
    "machine-little-gpu-memory", "slows", "Little GPU memory is free",
    "Other programs use most of the GPU's memory; there may be too little left for a model.",
    "Find them with nvidia-smi and stop them, or let the engine use less memory (vLLM: --gpu-memory-utilization).",
)  # fmt: skip
LITTLE_MEMORY_FREE = rule(
    "machine-little-memory", "slows", "Little main memory is free",
    "Weights are loaded through main memory. With too little of it the system swaps, which makes decoding very slow.",
    "Close other programs, or use a smaller model or quantisation.",
)  # fmt: skip

CMAKE_FLAGS = {"nvidia": "-DGGML_CUDA=on", "amd": "-DGGML_HIP=on", "apple": "-DGGML_METAL=on"}


def check(machine: Machine, engine: EngineFacts, packages: Packages | None = None) -> list[Finding]:
    """What limits the speed of an engine on this machine.

    `packages` are those of the engine's own environment; None: not known, so that they are not judged.
    """
    findings = _memory_findings(machine)
    if not machine.gpus:
        return [*findings, NO_GPU.finding(f"no GPU; {machine.processor}, {machine.cores} cores")]
    if packages and engine.uses_torch:
        findings += _torch_findings(packages.torch, machine.gpus[0])
    if packages and engine.uses_llama_cpp_python:
        findings += _llama_cpp_findings(packages.llama_cpp, machine.gpus[0])
    for gpu in machine.gpus:
        findings += _capability_findings(gpu, engine)
    return findings


def _memory_findings(machine: Machine) -> list[Finding]:
    findings = []
    if 0 < machine.memory_free < LITTLE_MEMORY:
        findings.append(
            LITTLE_MEMORY_FREE.finding(
                f"{_gb(machine.memory_free)} of {_gb(machine.memory_total)} of main memory are free"
            )
        )
    for gpu in machine.gpus:
        if gpu.memory_free < max(LITTLE_MEMORY, gpu.memory_total // 4):
            evidence = f"{gpu.name}: {_gb(gpu.memory_free)} of {_gb(gpu.memory_total)} are free"
            findings.append(LITTLE_GPU_MEMORY.finding(evidence))
    return findings


def _torch_findings(torch: InstalledPackage | None, gpu: Gpu) -> list[Finding]:
    if torch is None or gpu.vendor == "apple":
        return []
    evidence = f"torch {torch.version}, {torch.gpu_build or 'CPU build'}; {gpu.name}, driver {gpu.driver or 'unknown'}"
    if torch.gpu_build is None:
        return [TORCH_CPU_BUILD.finding(evidence, wheel="rocm6.4" if gpu.vendor == "amd" else "cu128")]
    kind, _, cuda = torch.gpu_build.partition(" ")
    needed = MIN_DRIVERS.get(_numbers(cuda)[0], (0, 0)) if kind == "CUDA" else (0, 0)
    if gpu.vendor == "nvidia" and (0, 0) < _numbers(gpu.driver) < needed:
        return [TORCH_OLD_DRIVER.finding(evidence, cuda=cuda, needed=".".join(map(str, needed)))]
    return [TORCH_SEES_NONE.finding(evidence)] if torch.sees_gpu is False else []


def _numbers(version: str | None) -> tuple[int, int]:
    """The first two numbers of a version; zeros if there are none."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _llama_cpp_findings(llama_cpp: InstalledPackage | None, gpu: Gpu) -> list[Finding]:
    if llama_cpp is None or llama_cpp.gpu_build is not None:
        return []
    evidence = f"llama-cpp-python {llama_cpp.version} without GPU support; {gpu.name}"
    return [LLAMA_CPP_CPU_BUILD.finding(evidence, flags=CMAKE_FLAGS.get(gpu.vendor, "-DGGML_VULKAN=on"))]


def _capability_findings(gpu: Gpu, engine: EngineFacts) -> list[Finding]:
    has = gpu.compute_capability
    if has is None:
        return []
    evidence = f"{gpu.name}: compute capability {has}"
    if has < engine.least_capability:
        return [CAPABILITY.finding(evidence, engine=engine.title, needed=engine.least_capability)]
    if has < 8.0:
        return [NO_BF16.finding(evidence)]
    return [NO_FP8.finding(evidence)] if has < 8.9 else []


# -- is the GPU used? -------------------------------------------------------------------------------------------------

RUNS_ON_CPU = rule(
    "machine-runs-on-cpu", "slows", "The model runs at CPU speed on a machine with a GPU",
    "{seconds:.1f} s for {tokens} tokens is the speed of this CPU; the GPU would take about {expected:.0f} s. The "
    "model does not run on the GPU.",
    "llama.cpp: -ngl 99 (n_gpu_layers=-1), and check that the build has GPU support; Ollama: `ollama ps` must say "
    "GPU; torch: --device cuda. Fix this first: it gains {factor:.0f}x, more than speculation can.",
)  # fmt: skip
FAR_BELOW = rule(
    "machine-far-below-roofline", "slows", "Decoding is far slower than reading the weights",
    "Decoding reads all weights once per token, so {device} should reach {limit:.1f} tokens/s. Something else takes "
    "the time: swapping, too many threads, a Python loop, or a long prompt that is included in the measurement.",
    "Measure only the tokens after the first. Check free memory, --threads (use the number of physical cores), and "
    "that no other program uses the CPU.",
)  # fmt: skip


def check_speed(machine: Machine, seconds: float, tokens: int, weight_bytes: int) -> list[Finding]:
    """Compares a measured speed of plain decoding with the time to read the weights on each device."""
    if seconds <= 0 or tokens <= 0 or weight_bytes <= 0:
        return []
    achieved = weight_bytes * tokens / seconds  # bytes/s
    evidence = (
        f"{tokens / seconds:.1f} tokens/s of {_gb(weight_bytes)} of weights: {achieved / 1e9:.1f} GB/s; "
        f"this CPU copies {machine.copy_bandwidth / 1e9:.0f} GB/s"
    )
    gpu = machine.gpu_for(weight_bytes)
    if gpu:
        expected = gpu.read_bandwidth
        evidence += f", {gpu.name} reads about {expected / 1e9:.0f} GB/s"
        if achieved < expected / 4 and achieved <= machine.copy_bandwidth * 1.5:
            took = max(tokens * weight_bytes / expected, 1.0)
            factor = seconds / took
            return [RUNS_ON_CPU.finding(evidence, seconds=seconds, tokens=tokens, expected=took, factor=factor)]
    limit = machine.read_bandwidth(weight_bytes)
    if achieved < limit / 4:
        device = gpu.name if gpu else "this CPU"
        return [FAR_BELOW.finding(evidence, limit=limit / weight_bytes, device=device)]
    return []


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
