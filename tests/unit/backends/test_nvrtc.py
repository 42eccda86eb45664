"""GPU code compiled at run time: kept in the cache, compiled again if that was damaged, done without if it can't be."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from slipstream.backends.torch import load as torch_backend
from slipstream.backends.torch.cuda import nvrtc
from slipstream.backends.torch.cuda.quantised_layout import CodeLayout
from slipstream.models.gguf_blocks import BLOCK_KINDS

SOURCE = Path(nvrtc.__file__).with_name("quantised.cu").read_bytes()


class CountingCompiler:
    version, compiled = "13.0", 0

    def compile(self, source: bytes, options: list[str]) -> bytes:
        type(self).compiled += 1
        return source + " ".join(options).encode()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[CountingCompiler]:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr(nvrtc, "Compiler", CountingCompiler)
    monkeypatch.setattr(CountingCompiler, "compiled", 0)
    return CountingCompiler


def test_what_was_compiled_is_kept_for_each_source_and_option(compiler: type[CountingCompiler]) -> None:
    assert nvrtc._compiled(b"one", ["-a"]) == nvrtc._compiled(b"one", ["-a"]) == b"one-a"
    assert (nvrtc._compiled(b"one", ["-b"]), nvrtc._compiled(b"two", ["-a"])) == (b"one-b", b"two-a")
    assert compiler.compiled == 3


def test_what_was_damaged_is_compiled_again(compiler: type[CountingCompiler], tmp_path: Path) -> None:
    nvrtc._compiled(b"one", [])
    (kept,) = (tmp_path / "kernels").glob("gpu-*.cubin")
    kept.write_bytes(b"something else")
    assert nvrtc._compiled(b"one", []) == b"one"
    assert compiler.compiled == 2


def test_without_a_compiler_weights_are_unpacked_and_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise nvrtc.CompilerMissingError("NVRTC is missing: pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(nvrtc, "_found_library", missing)
    with caplog.at_level(logging.WARNING):
        assert not torch_backend._can_compile()
    assert "pip install nvidia-cuda-nvrtc" in caplog.text
    assert "16 bits" in caplog.text


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernels_compile_without_a_gpu(architecture: str) -> None:
    try:
        real = nvrtc.Compiler()
    except nvrtc.CompilerMissingError:
        pytest.skip("needs NVRTC (pip install nvidia-cuda-nvrtc)")
    layout = CodeLayout.of(BLOCK_KINDS[12].format, 256)
    for defines in ({}, layout.defines):
        options = [f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{k}={v}" for k, v in defines.items())]
        assert real.compile(SOURCE, options).startswith(b"\x7fELF")


def test_what_does_not_compile_is_an_error_with_the_compilers_words() -> None:
    try:
        real = nvrtc.Compiler()
    except nvrtc.CompilerMissingError:
        pytest.skip("needs NVRTC (pip install nvidia-cuda-nvrtc)")
    with pytest.raises(nvrtc.CompilerMissingError, match="undefined"):
        real.compile(b"__global__ void f() { undefined(); }", ["--gpu-architecture=sm_80"])
