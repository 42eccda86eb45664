"""Kernels in CUDA C++: compiled at run time with NVRTC, which torch ships, and cached per GPU and version.

A launch goes through the driver on torch's current stream, so a graph that is being captured takes it in.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from slipstream.backends.torch.code_cache import keep_code, kept_code
from slipstream.errors import SlipstreamError

log = logging.getLogger("slipstream")

Argument = torch.Tensor | int | float | ctypes.Structure  # a pointer, 32-bit numbers, or what is passed by value


class NvrtcError(SlipstreamError):
    """A kernel that can't be compiled, loaded or started here."""


class Kernel:
    """A compiled kernel, loaded on the current device."""

    def __init__(self, cubin: bytes, name: str) -> None:
        driver = _driver()
        torch.cuda.current_stream()  # the device's context, made if it is not there
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(driver.cuModuleLoadData(ctypes.byref(self._module), cubin), f"loading the kernel {name}")
        found = driver.cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode())
        _check(found, f"finding the kernel {name}")
        self._name = name

    def launch(self, grid: Sequence[int], num_threads: int, arguments: Sequence[Argument]) -> None:
        """Starts it on torch's current stream, with so many threads in a block."""
        values = [_as_c(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        blocks, stream = [*grid, *([1] * (3 - len(grid)))], ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = _driver().cuLaunchKernel(self._function, *blocks, num_threads, 1, 1, 0, stream, pointers, None)
        _check(status, f"starting the kernel {self._name}")


def cached_cubin(source: str, name: str, architecture: str, options: Sequence[str] = ()) -> bytes:
    """Code for an architecture, from the cache or compiled. Raises NvrtcError."""
    identity = "\0".join((source, architecture, nvrtc_version(), *options)).encode()
    stem = f"{name}-{architecture}-{hashlib.sha256(identity).hexdigest()[:16]}"
    if kept := kept_code(stem, ".cubin"):
        return kept[1]
    log.info("compiling the GPU kernel %s (once per GPU and version)", name)
    cubin = compile_cubin(source, name, architecture, options)
    keep_code(cubin, stem, ".cubin")
    return cubin


def compile_cubin(source: str, name: str, architecture: str, options: Sequence[str] = ()) -> bytes:
    library = _nvrtc()
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None)
    _check_nvrtc(created, name)
    try:
        flags = [f"--gpu-architecture={architecture}", "--std=c++17", *options]
        encoded = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        status = library.nvrtcCompileProgram(program, len(flags), encoded)
        message = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        said = message.rstrip(b"\0").decode(errors="replace")
        if status:
            raise NvrtcError(f"the GPU kernel {name} can't be compiled: {said}")
        log.debug("compiled %s: %s", name, said)
        return _text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def nvrtc_version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check_nvrtc(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "version")
    return f"{major.value}.{minor.value}"


def _text(size_of: ctypes._NamedFuncPointer, read: ctypes._NamedFuncPointer, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check_nvrtc(size_of(program, ctypes.byref(size)), "the result's size")
    data = ctypes.create_string_buffer(size.value)
    _check_nvrtc(read(program, data), "the result")
    return data.raw


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    tried = list(_libraries())
    for candidate in tried:
        # Beside the compiler, which asks for it by name alone.
        builtins = Path(candidate).parent.glob("libnvrtc-builtins.so.*") if Path(candidate).is_absolute() else ()
        with suppress(OSError):
            return [ctypes.CDLL(str(part)) for part in (*builtins, candidate)][-1]
    raise NvrtcError(f"NVRTC, the CUDA compiler that torch ships, is not installed (looked for {', '.join(tried)})")


def _libraries() -> Iterator[str]:
    """Torch's packages first: their version is the one that torch was built with."""
    major = (torch.version.cuda or "13").split(".")[0]
    for entry in sys.path:
        for path in sorted(Path(entry).resolve().glob(f"nvidia/*/lib/libnvrtc.so.{major}*")):
            yield str(path)
    yield f"libnvrtc.so.{major}"
    yield "libnvrtc.so"


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NvrtcError(f"the CUDA driver can't be loaded: {error}") from error


def _as_c(argument: Argument) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_float | ctypes.Structure:
    if isinstance(argument, ctypes.Structure):
        return argument
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int(argument)


def _check(status: int, doing: str) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise NvrtcError(f"{doing} failed: {(text.value or b'').decode() or f'CUDA error {status}'}")


def _check_nvrtc(status: int, doing: str) -> None:
    if status:
        raise NvrtcError(f"NVRTC failed ({doing}): error {status}")
