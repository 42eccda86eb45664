"""Which backend a model goes to, and why; options that can't be are refused. Needs no llama-cpp-python."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from gguf import GGMLQuantizationType

import slipstream.backends as backends
from slipstream.backends import BACKENDS, MachineOptions, choose_backend
from slipstream.backends.llamacpp.options import LlamaCppOptions
from slipstream.errors import MissingDependencyError, UsageError
from slipstream.extras import install_command
from slipstream.loading import load_model
from slipstream.model_files.model_facts import describe
from slipstream.predict.gpus import parse_nvidia_smi
from slipstream.predict.machine import Machine, inspect
from slipstream.predict.own_memory import BACKEND_MEMORY, LLAMA_CPP, OWN_ENGINE
from slipstream.predict.packages import InstalledPackage
from slipstream.predict.sizes import Sizes
from unit.models import model_files

LLAMA, FLOATS, NO_CODES, GEMMA = ("llama", "Q4_0"), ("llama", "F32"), ("llama", "BF16"), ("gemma", "Q4_0")


def write(path: Path, architecture: str = "llama", quantisation: str = "F32") -> Path:
    model_files.write_gguf(path, architecture=architecture, quantisation=GGMLQuantizationType[quantisation])
    return path


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write(tmp_path / "llama.gguf")


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def have(*, torch_gpu: bool = False, llama_cpp_gpu: bool = False, llama_cpp: bool = True) -> None:
        monkeypatch.setattr(backends, "find_spec", {"llama_cpp": object() if llama_cpp else None}.get)
        monkeypatch.setattr(backends, "_torch_sees_a_gpu", lambda: torch_gpu)
        monkeypatch.setattr(backends, "_llama_cpp_sees_a_gpu", lambda: llama_cpp_gpu)

    return have


@pytest.mark.parametrize(
    ("model", "gpu", "device", "backend", "reason"),
    [
        (LLAMA, "", "auto", "torch", "as they are stored"),
        (LLAMA, "", "cpu", "torch", "as they are stored"),
        (LLAMA, "llama_cpp_gpu", "auto", "llamacpp", "no GPU for torch"),
        (LLAMA, "llama_cpp_gpu", "cpu", "torch", "as they are stored"),
        (NO_CODES, "", "auto", "llamacpp", "not quantised"),
        (FLOATS, "", "auto", "llamacpp", "not quantised"),
        (FLOATS, "torch_gpu", "auto", "torch", "has a GPU"),
        (FLOATS, "torch_gpu", "cpu", "llamacpp", "no GPU"),
        (GEMMA, "torch_gpu", "auto", "llamacpp", "can't run"),
    ],
)
def test_a_gguf_goes_where_it_runs_best(tmp_path, have, model, gpu, device, backend, reason):
    have(**({gpu: True} if gpu else {}))
    choice = choose_backend(write(tmp_path / "model.gguf", *model), device=device)
    assert (choice.backend, choice.was_open) == (backend, True)
    assert reason in choice.reason


def test_without_a_compiler_a_model_goes_to_llama_cpp_and_predictions_know(tmp_path, have, monkeypatch):
    path = write(tmp_path / "q.gguf", *LLAMA)
    have()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    machine = replace(inspect(), llama_cpp=InstalledPackage("0.3", None, sees_gpu=False))
    assert OWN_ENGINE.memory.for_model(Sizes.of(describe(path)), machine) is LLAMA_CPP
    assert choose_backend(path).backend == "llamacpp"


@pytest.mark.parametrize("model", [LLAMA, FLOATS, GEMMA])
def test_predictions_take_the_backend_that_loading_takes(tmp_path, have, monkeypatch, model):
    path = write(tmp_path / "model.gguf", *model)
    sizes, gpus = Sizes.of(describe(path)), parse_nvidia_smi("NVIDIA GeForce RTX 3060, 12288, 11800, 8.6, 570")
    for torch_gpu, llama_cpp_gpu, llama_cpp, has_compiler in itertools.product((False, True), repeat=4):
        have(torch_gpu=torch_gpu, llama_cpp_gpu=llama_cpp_gpu, llama_cpp=llama_cpp)
        monkeypatch.setattr(backends, "c_compiler", lambda has=has_compiler: ["cc"] * has)
        torch, library = (InstalledPackage("1", None, seen) for seen in (torch_gpu, llama_cpp_gpu))
        machine = Machine("", 8, 1, 1, 1.0, gpus, torch, library if llama_cpp else None, has_compiler)
        assert OWN_ENGINE.memory.for_model(sizes, machine) is BACKEND_MEMORY[choose_backend(path).backend]


def test_what_only_torch_can_run_goes_there(tmp_path, gguf, have):
    have()
    assert choose_backend(gguf, needs_layers=True).backend == "torch"
    assert choose_backend(tmp_path).backend == "torch"
    assert choose_backend("smollm2-135m").backend == "torch"
    have(llama_cpp=False)
    choice = choose_backend(gguf)
    assert (choice.backend, choice.was_open) == ("torch", False)


def test_what_is_asked_for_is_taken(gguf):
    assert choose_backend(gguf, "llamacpp").backend == "llamacpp"
    with pytest.raises(UsageError, match="expected auto, torch, llamacpp"):
        choose_backend(gguf, "llama")


def test_the_missing_extra_names_the_pip_command(gguf):
    from slipstream.backends.llamacpp.library import library

    library.cache_clear()
    with mock.patch.dict("sys.modules", {"llama_cpp": None}), pytest.raises(MissingDependencyError) as caught:
        load_model(gguf, LlamaCppOptions())
    assert install_command("llamacpp") in str(caught.value)


def test_options_of_the_other_backend_are_refused():
    with pytest.raises(UsageError, match="--gpu-layers is an option of the llamacpp backend"):
        BACKENDS["torch"].options(MachineOptions(gpu_layers=3))
    with pytest.raises(UsageError, match="--dtype bf16 is an option of the torch backend"):
        BACKENDS["llamacpp"].options(MachineOptions(dtype="bf16"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_type": "q3"}, "auto, f32, f16, q8_0, q4_0"),
        ({"flash_attention": "maybe"}, "auto, on, off"),
        ({"kv_type": "q8_0", "flash_attention": "off"}, "needs flash attention"),
        ({"kv_type": "f32", "exact": True}, "rounds f32"),
        ({"exact": True, "flash_attention": "off"}, "needs flash attention"),
        ({"threads": 0}, "1 or more"),
        ({"threads": 99999}, "this machine has"),
        ({"threads_batch": 99999}, "this machine has"),
        ({"max_rows": 1}, "16 to 4096"),
        ({"max_streams": 500}, "at most 128"),
        ({"rope_freq_scale": 0.0}, "more than 0"),
    ],
)
def test_wrong_options_say_what_would_be_right(options, message):
    with pytest.raises(UsageError, match=message):
        LlamaCppOptions(**options)


def test_gpu_layers_are_those_the_model_has():
    assert LlamaCppOptions().gpu_layers(30, build_offloads=True) == 31
    assert LlamaCppOptions().gpu_layers(30, build_offloads=False) == 0
    assert LlamaCppOptions(n_gpu_layers=7).gpu_layers(30, build_offloads=True) == 7
    with pytest.raises(UsageError, match="expected 0 \\(none\\) to 31, or -1"):
        LlamaCppOptions(n_gpu_layers=32).gpu_layers(30, build_offloads=True)
    with pytest.raises(UsageError, match="built without GPU support"):
        LlamaCppOptions(n_gpu_layers=5).gpu_layers(30, build_offloads=False)
