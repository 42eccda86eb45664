from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.diagnosis.machine_checks import check, check_speed
from slipstream.engines import find_folder
from slipstream.errors import UsageError
from slipstream.predict.gpus import Gpu, amd_gpus, ask, parse_nvidia_smi
from slipstream.predict.machine import Machine, inspect
from slipstream.predict.packages import InstalledPackage, Packages, packages_of

# nvidia-smi --query-gpu=name,memory.total,memory.free,compute_cap,driver_version --format=csv,noheader,nounits
VLLM = find_folder("vllm").facts
OWN = find_folder("slipstream").facts
T4 = "Tesla T4, 15360, 14921, 7.5, 550.54.15\n"
STORY_CARDS = (
    "NVIDIA GeForce RTX 5090, 32607, 32109, 12.0, 570.86.10\nNVIDIA GeForce RTX 4090, 24564, 24080, 8.9, 570.86.10\n"
)
RTX_5080 = "NVIDIA GeForce RTX 5080, 16303, 15800, 12.0, 570.86.10\n"


def machine(smi: str = "", **changes: object) -> Machine:
    plain = Machine("a CPU", 16, 64 << 30, 48 << 30, 60e9, parse_nvidia_smi(smi))
    return replace(plain, **changes)


def ids(findings: list) -> list[str]:
    return [finding.id for finding in findings]


# -- inspecting


def test_this_machine_is_described_quickly_and_without_torch() -> None:
    program = (
        "import os, sys; from slipstream.predict.machine import inspect; m = inspect(); "
        "print(sum(os.times()[:4]), 'torch' in sys.modules, m.cores, m.memory_total, m.copy_bandwidth)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    seconds, has_torch, cores, memory, bandwidth = output
    assert float(seconds) < 3  # of processor time, its child processes included
    assert has_torch == "False"
    assert int(cores) >= 1 and int(memory) > 1 << 30
    assert 1e9 < float(bandwidth) < 2e12


def test_torch_here_is_seen_as_it_is() -> None:
    import torch

    seen = inspect().torch
    assert seen is not None and seen.version == torch.__version__
    assert (seen.gpu_build is not None) == (torch.version.cuda is not None or torch.version.hip is not None)
    if not torch.cuda.is_available():
        assert not seen.sees_gpu


def test_nvidia_smi_is_read() -> None:
    first, second = parse_nvidia_smi(STORY_CARDS)
    assert (first.name, first.vendor, first.compute_capability) == ("NVIDIA GeForce RTX 5090", "nvidia", 12.0)
    assert first.memory_total == 32607 << 20 and first.memory_free == 32109 << 20
    assert (first.bandwidth, second.bandwidth) == (1792e9, 1008e9)
    assert second.driver == "570.86.10"


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("Tesla T4", 320), ("NVIDIA A100-SXM4-80GB", 2039), ("NVIDIA A100-SXM4-40GB", 1555), ("NVIDIA A10G", 600),
        ("NVIDIA L40S", 864), ("NVIDIA L4", 300), ("NVIDIA GeForce RTX 4070 Ti SUPER", 672), ("NVIDIA H200", 4800),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", 360), ("Apple M4 Max", 410),
    ],
)  # fmt: skip
def test_the_longest_known_name_gives_the_bandwidth(name: str, gigabytes: float) -> None:
    (gpu,) = parse_nvidia_smi(f"{name}, 1000, 1000, 8.0, 550.1")
    assert gpu.bandwidth == gigabytes * 1e9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate",
        "a, b, c, d, e\n",
        ",,,,\n",
    ],
)
def test_what_nvidia_smi_says_without_gpus_is_none(text: str) -> None:
    assert parse_nvidia_smi(text) == ()


def test_values_that_are_not_available_are_left_out() -> None:
    (gpu,) = parse_nvidia_smi("NVIDIA Odd Card, 8192, [N/A], [N/A], 535.10\n")
    assert (gpu.memory_free, gpu.compute_capability, gpu.bandwidth) == (8192 << 20, None, None)
    assert gpu.read_bandwidth > 0


def test_amd_cards_are_read_from_the_drivers_files(tmp_path: Path) -> None:
    for card, total in (("card0", 512 << 20), ("card1", 24 << 30)):
        device = tmp_path / card / "device"
        device.mkdir(parents=True)
        (device / "mem_info_vram_total").write_text(f"{total}\n")
        (device / "mem_info_vram_used").write_text(f"{1 << 30}\n")
        (device / "product_name").write_text("AMD Radeon RX 7900 XTX\n")
    (gpu,) = amd_gpus(tmp_path)
    assert (gpu.vendor, gpu.memory_free, gpu.bandwidth) == ("amd", 23 << 30, 960e9)


def test_a_tool_that_hangs_or_is_missing_does_not_hold_up() -> None:
    started = time.perf_counter()
    assert ask(sys.executable, "-c", "import time; time.sleep(30)", timeout_s=0.3) is None
    assert ask("no-such-tool-anywhere") is None
    assert ask(sys.executable, "-c", "raise SystemExit(3)") is None
    assert time.perf_counter() - started < 20


# -- checking


def test_no_gpu_is_a_note() -> None:
    (finding,) = check(machine(), OWN)
    assert (finding.id, finding.severity) == ("machine-no-gpu", "note")


def test_a_cpu_build_of_torch_on_a_gpu_machine_is_named() -> None:
    findings = check(machine(STORY_CARDS), OWN, Packages(InstalledPackage("2.9.0+cpu", None, False)))
    (finding,) = [f for f in findings if f.id == "machine-torch-cpu-build"]
    assert "2.9.0+cpu" in finding.evidence and "RTX 5090" in finding.evidence
    assert "pip install" in finding.fix and "cu128" in finding.fix


@pytest.mark.parametrize(
    ("driver", "too_old"), [("470.82.01", True), ("470.199.02", True), ("525.60.13", False), ("525.105.17", False)]
)
def test_the_driver_must_be_as_new_as_torchs_cuda(driver: str, too_old: bool) -> None:
    smi = f"Tesla T4, 15360, 14921, 7.5, {driver}\n"
    found = ids(check(machine(smi), VLLM, Packages(InstalledPackage("2.6.0", "CUDA 12.4", True))))
    assert ("machine-driver-too-old" in found) == too_old


def test_a_gpu_that_cuda_does_not_see_is_named() -> None:
    findings = check(machine(T4), VLLM, Packages(InstalledPackage("2.9.0", "CUDA 12.8", False)))
    (finding,) = [f for f in findings if f.id == "machine-gpu-invisible"]
    assert "CUDA_VISIBLE_DEVICES" in finding.fix and finding.severity == "blocks"


def test_a_t4_has_no_bf16_and_no_flash_attention_2() -> None:
    (finding,) = check(machine(T4), VLLM, Packages(InstalledPackage("2.9.0", "CUDA 12.8", True)))
    assert finding.id == "machine-no-bf16" and "7.5" in finding.evidence
    assert "FlashAttention 2" in finding.cause and "--dtype half" in finding.fix


@pytest.mark.parametrize(
    ("capability", "engine", "expected"),
    [
        (6.1, "vllm", ["machine-compute-capability"]),
        (7.0, "vllm", ["machine-no-bf16"]),
        (7.0, "sglang", ["machine-compute-capability"]),
        (6.1, "llama.cpp", ["machine-no-bf16"]),
        (8.0, "vllm", ["machine-no-fp8"]),
        (8.9, "vllm", []),
    ],
)
def test_engines_need_a_compute_capability(capability: float, engine: str, expected: list[str]) -> None:
    assert ids(check(machine(f"Some GPU, 16384, 16000, {capability}, 570.10\n"), find_folder(engine).facts)) == expected


@pytest.mark.parametrize(
    ("vendor", "flags"), [("nvidia", "-DGGML_CUDA=on"), ("apple", "-DGGML_METAL=on"), ("amd", "-DGGML_HIP=on")]
)
def test_llama_cpp_python_without_gpu_support_is_named_with_the_command(vendor: str, flags: str) -> None:
    gpu = Gpu("A GPU", vendor, 16 << 30, 16 << 30, 8.9, 900e9, None)
    seen, without = machine(gpus=(gpu,)), Packages(None, InstalledPackage("0.3.2", None, False))
    (finding,) = [f for f in check(seen, OWN, without) if f.id == "machine-llama-cpp-cpu-build"]
    assert finding.fix.startswith(f'CMAKE_ARGS="{flags}" pip install') and "0.3.2" in finding.evidence
    assert "machine-llama-cpp-cpu-build" not in ids(check(seen, VLLM, without))
    fine = Packages(None, InstalledPackage("0.3.2", "GPU offload", True))
    assert "machine-llama-cpp-cpu-build" not in ids(check(seen, OWN, fine))


def test_slipstreams_own_torch_says_nothing_of_another_engine() -> None:
    """vLLM has an environment of its own: this one's torch is only judged if --python names it."""
    broken = InstalledPackage("2.9.0", "CUDA 12.8", False)
    seen = machine(T4, torch=broken)
    assert "machine-gpu-invisible" not in ids(check(seen, VLLM))
    assert "machine-gpu-invisible" in ids(check(seen, VLLM, Packages(broken)))


def test_the_packages_of_another_python_are_read() -> None:
    here, there = inspect(), packages_of(sys.executable)
    assert here.torch and there.torch and there.torch.version == here.torch.version
    assert there.torch.gpu_build == here.torch.gpu_build and there.torch.sees_gpu is None


@pytest.mark.parametrize(
    ("name", "mode", "words"),
    [("missing", None, "does not exist"), ("text", 0o644, "can't be run"), ("true", 0o755, "is not a Python")],
)
def test_a_path_that_is_no_python_is_refused(tmp_path: Path, name: str, mode: int | None, words: str) -> None:
    path = tmp_path / name
    if mode is not None:
        path.write_text("#!/bin/sh\nexit 0\n")
        path.chmod(mode)
    with pytest.raises(UsageError, match=words):
        packages_of(str(path))
    with pytest.raises(UsageError, match="is a folder"):
        packages_of(str(tmp_path))


def test_little_free_memory_is_named() -> None:
    busy = "Tesla T4, 15360, 900, 7.5, 550.54.15\n"
    findings = check(machine(busy, memory_free=1 << 30), OWN)
    assert {"machine-little-gpu-memory", "machine-little-memory"} <= set(ids(findings))
    assert "0.9 of 16.1 GB" in next(f for f in findings if f.id == "machine-little-gpu-memory").evidence.replace(
        " GB of", " of"
    )


# -- is the GPU at work?


def test_the_story_of_22_seconds_is_cpu_inference() -> None:
    """Llama 3.1 8B Q5_K_M (5.7 GB), 22.4 s for 100 tokens, on a machine with an RTX 5080."""
    (finding,) = check_speed(machine(RTX_5080), 22.39, 100, 5_700_000_000)
    assert finding.id == "machine-runs-on-cpu"
    assert "22.4 s for 100 tokens is the speed of this CPU" in finding.cause
    assert "the GPU would take about 1 s" in finding.cause
    assert "-ngl 99" in finding.fix and "22x" in finding.fix


def test_a_gpu_at_work_is_not_blamed() -> None:
    assert check_speed(machine(RTX_5080), 100 / 63.8, 100, 5_700_000_000) == []


def test_a_model_too_large_for_the_gpu_is_held_against_the_cpu() -> None:
    assert check_speed(machine(RTX_5080), 100 * 40e9 / 30e9, 100, 40_000_000_000) == []


def test_slower_than_any_device_is_another_matter() -> None:
    (finding,) = check_speed(machine(), 100.0, 10, 5_700_000_000)
    assert finding.id == "machine-far-below-roofline" and "this CPU" in finding.cause
    assert check_speed(machine(), 20.0, 100, 5_700_000_000) == []


@pytest.mark.parametrize(("seconds", "tokens", "weights"), [(0, 100, 1), (1, 0, 1), (1, 1, 0)])
def test_no_measurement_gives_no_finding(seconds: float, tokens: int, weights: int) -> None:
    assert check_speed(machine(T4), seconds, tokens, weights) == []
