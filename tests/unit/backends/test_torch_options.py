"""TorchOptions: wrong values are refused with what would be right."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from slipstream.backends.torch import load as torch_backend
from slipstream.backends.torch.cpu.ops import NativeOps
from slipstream.backends.torch.options import TorchOptions, keeps_codes, pick_device
from slipstream.errors import UsageError


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'int3' is unknown; expected auto, fp32, bf16, fp16"):
        TorchOptions(dtype="int3")


@pytest.mark.parametrize("name", ["context_length", "kv_tokens", "threads"])
@pytest.mark.parametrize("value", [0, -5])
def test_sizes_below_one_are_refused(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}; expected 1 or more"):
        TorchOptions(**{name: value})


def test_more_threads_than_the_machine_can_run_are_refused() -> None:
    with pytest.raises(UsageError, match="threads is 99999999999; this machine has"):
        TorchOptions(threads=99999999999)


@pytest.mark.parametrize("device", ["gpu", "cpux", "", "cuda:x", "mps", "meta", "xpu"])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match="expected auto, cpu, cuda"):
        pick_device(device)


def test_cuda_without_a_cuda_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="sees no CUDA device"):
        pick_device("cuda:0")


def test_auto_is_the_cpu_where_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")


def test_half_precision_needs_a_compiler_that_has_it() -> None:
    with pytest.raises(UsageError, match="half-precision"):
        NativeOps(SimpleNamespace(slip_has_f16=lambda: 0), torch.float16)  # type: ignore[arg-type]


def test_without_kernels_the_decoder_runs_in_plain_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(torch_backend, "kernels", lambda: None)
    ops = torch_backend._pick_ops(torch.device("cpu"), torch.float32, exact=True, codes=True)
    assert ops.name == "torch"
    assert ops.batch_invariant


def test_codes_are_kept_unless_a_type_is_asked_for_or_the_gpu_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert keeps_codes(TorchOptions(), cpu) and keeps_codes(TorchOptions(activations="int8"), cpu)
    assert not keeps_codes(TorchOptions(activations="fp"), cpu)
    assert not keeps_codes(TorchOptions(dtype="fp32"), cpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert keeps_codes(TorchOptions(), gpu)
    assert not keeps_codes(TorchOptions(activations="fp"), gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not keeps_codes(TorchOptions(), gpu)


def test_activations_that_are_unknown_or_contradict_the_type_are_refused() -> None:
    with pytest.raises(UsageError, match="expected auto, int8, fp"):
        TorchOptions(activations="int4")
    with pytest.raises(UsageError, match="one of the two"):
        TorchOptions(activations="int8", dtype="bf16")
