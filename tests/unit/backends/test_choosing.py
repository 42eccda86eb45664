"""Which backend a model goes to, and why; options that can't be are refused. Needs no llama-cpp-python."""

from __future__ import annotations

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
from unit.models import model_files


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    model_files.write_gguf(tmp_path / "llama.gguf")
    return tmp_path / "llama.gguf"


@pytest.fixture
def other_gguf(tmp_path: Path) -> Path:
    model_files.write_gguf(tmp_path / "other.gguf", architecture="gemma")
    return tmp_path / "other.gguf"


@pytest.fixture
def installed():
    with mock.patch.object(backends, "find_spec", return_value=object()) as found:
        yield found


@pytest.fixture
def gpu():
    with mock.patch.object(backends, "_torch_sees_a_gpu", return_value=True) as seen:
        yield seen


@pytest.fixture
def no_gpu():
    with (
        mock.patch.object(backends, "_torch_sees_a_gpu", return_value=False) as seen,
        mock.patch.object(backends, "_llama_cpp_sees_a_gpu", return_value=False),
    ):
        yield seen


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_quantised_gguf_runs_on_torch_without_a_gpu_too(tmp_path, installed, no_gpu, device):
    model_files.write_gguf(tmp_path / "q.gguf", quantisation=GGMLQuantizationType.Q4_0)
    choice = choose_backend(tmp_path / "q.gguf", device=device)
    assert (choice.backend, choice.was_open) == ("torch", True)
    assert "as they are stored" in choice.reason


def test_a_gpu_that_only_llama_cpp_uses_goes_before_the_cpu(tmp_path, installed, no_gpu):
    model_files.write_gguf(tmp_path / "q.gguf", quantisation=GGMLQuantizationType.Q4_0)
    with mock.patch.object(backends, "_llama_cpp_sees_a_gpu", return_value=True):
        assert choose_backend(tmp_path / "q.gguf").backend == "llamacpp"
        assert choose_backend(tmp_path / "q.gguf", device="cpu").backend == "torch"


def test_without_a_compiler_or_with_a_type_that_has_no_codes_it_goes_to_llama_cpp(
    tmp_path, installed, no_gpu, monkeypatch
):
    model_files.write_gguf(tmp_path / "q.gguf", quantisation=GGMLQuantizationType.Q4_0)
    model_files.write_gguf(tmp_path / "bf16.gguf", quantisation=GGMLQuantizationType.BF16)
    assert choose_backend(tmp_path / "bf16.gguf").backend == "llamacpp"
    monkeypatch.setattr("slipstream.backends.torch.cpu.library.has_compiler", lambda: False)
    assert choose_backend(tmp_path / "q.gguf").backend == "llamacpp"


def test_a_gguf_without_a_gpu_goes_to_llama_cpp(gguf, installed, no_gpu):
    choice = choose_backend(gguf)
    assert (choice.backend, choice.was_open) == ("llamacpp", True)
    assert "GGUF" in choice.reason


def test_a_gguf_with_a_gpu_goes_to_torch_if_that_can_run_it(gguf, other_gguf, installed, gpu):
    assert choose_backend(gguf).backend == "torch"
    assert choose_backend(gguf, device="cpu").backend == "llamacpp"
    assert choose_backend(other_gguf).backend == "llamacpp"


def test_a_drafter_that_needs_layers_goes_to_torch(gguf, installed, no_gpu):
    assert choose_backend(gguf, needs_layers=True).backend == "torch"


def test_safetensors_and_the_built_in_model_stay_on_torch(tmp_path, installed, no_gpu):
    assert choose_backend(tmp_path).backend == "torch"
    assert choose_backend("smollm2-135m").backend == "torch"


def test_without_the_extra_nothing_changes(gguf):
    with mock.patch.object(backends, "find_spec", return_value=None):
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
