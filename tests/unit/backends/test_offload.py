"""What is on the GPU, read from llama.cpp's own words. The lines are those of a build with CUDA, which none here is."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("llama_cpp")

from slipstream.backends.llamacpp import offload
from slipstream.backends.llamacpp.offload import LlamaGpu, OffloadReport, read_report, warn_of_unused_gpu

pytestmark = pytest.mark.llamacpp

LINES = [
    "load_tensors: offloading 20 repeating layers to GPU",
    "load_tensors: offloaded 20/29 layers to GPU",
    "load_tensors:   CPU_Mapped model buffer size =   934.69 MiB",
    "load_tensors:        CUDA0 model buffer size =   600.50 MiB",
    "llama_kv_cache:      CUDA0 KV buffer size =   100.00 MiB",
    "llama_kv_cache:        CPU KV buffer size =    40.00 MiB",
    "sched_reserve:      CUDA0 compute buffer size =   299.50 MiB",
    "sched_reserve:  CUDA_Host compute buffer size =    10.00 MiB",
]
H200 = LlamaGpu("CUDA0", "NVIDIA H200", 1 << 37, 1 << 37)


def report(layers: int, devices: tuple[LlamaGpu, ...] = (H200,), build_offloads: bool = True) -> OffloadReport:
    return OffloadReport(build_offloads, devices, layers, 29, {"CUDA0": 1000 << 20} if layers else {"CPU": 1})


def test_layers_and_bytes_are_the_librarys_own() -> None:
    found = read_report(LINES, num_layers=28)
    assert (found.layers, found.num_layers) == (20, 29)
    assert found.gpu_bytes == {"CUDA0": 1000 << 20}
    assert found.device == "CUDA0+cpu"


def test_this_build_says_what_it_is() -> None:
    found = read_report([], num_layers=28)
    assert found.layers == 0
    if not found.build_offloads:
        assert "built without GPU support" in found.text()
        assert found.device == "cpu"


@pytest.mark.parametrize(
    ("found", "wanted", "words"),
    [
        (report(0), 0, "although there is a GPU (NVIDIA H200)"),
        (report(20), 29, "29 layers were requested on a GPU, but 20 are on one"),
    ],
)
def test_an_unused_gpu_is_said_loudly(
    found: OffloadReport, wanted: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "slipstream"):
        warn_of_unused_gpu(found, wanted)
    assert words in caplog.text


def test_a_driver_that_this_build_can_t_use_is_said_loudly(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    with caplog.at_level(logging.WARNING, "slipstream"):
        warn_of_unused_gpu(report(0, (), build_offloads=False), 0)
    assert "GGML_CUDA" in caplog.text


def test_a_gpu_that_is_used_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_unused_gpu(report(29), 29)
    assert caplog.text == ""
