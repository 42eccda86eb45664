"""CUDA C++ compiled at run time for the GPU that is there, by the compiler that torch brings; kept in the cache."""

from __future__ import annotations

import ctypes
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from slipstream.cache import private_folder, read_private
from slipstream.errors import SlipstreamError
from slipstream.writing import OWNER_WRITES, write_whole

log = logging.getLogger("slipstream")

_VERSIONS = (13, 12, 11)
_POINTER = ctypes.c_void_p


class CompilerMissingError(SlipstreamError):
    """There is no compiler for GPU code, or it failed."""


class Compiler:
    """NVRTC, which needs no GPU."""

    def __init__(self) -> None:
        """Raises CompilerMissingError."""
        self._library = _found_library()
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = f"{major.value}.{minor.value}"

    def compile(self, source: bytes, options: Sequence[str]) -> bytes:
        """The machine code. Raises CompilerMissingError with what the compiler says."""
        library, program = self._library, _POINTER()
        self._check(library.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None))
        try:
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            if library.nvrtcCompileProgram(program, len(options), given):
                raise CompilerMissingError(f"GPU kernels do not compile: {self._log(program)}")
            size = ctypes.c_size_t()
            self._check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
            code = ctypes.create_string_buffer(size.value)
            self._check(library.nvrtcGetCUBIN(program, code))
            return code.raw
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._check(self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(self._library.nvrtcGetProgramLog(program, text))
        return text.value.decode(errors="replace").strip()

    def _check(self, code: int) -> None:
        if code:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CompilerMissingError(f"NVRTC: {self._library.nvrtcGetErrorString(code).decode()}")


def _found_library() -> ctypes.CDLL:
    """Torch's own copy. What it links is found by its path there, whatever version that is."""
    own = Path(torch.__file__).parent / "lib" / "libcaffe2_nvrtc.so"
    for name in (str(own), *(f"libnvrtc.so.{version}" for version in _VERSIONS), *_packaged(own.parents[2])):
        try:
            library = ctypes.CDLL(name)
            library.nvrtcVersion  # noqa: B018
        except (OSError, AttributeError):
            continue
        return library
    raise CompilerMissingError("NVRTC, the compiler for GPU code, is missing: pip install nvidia-cuda-nvrtc")


def _packaged(packages: Path) -> list[str]:
    return [str(path) for path in sorted(packages.glob("nvidia/*/lib/libnvrtc.so.*"), reverse=True)]


class Module:
    """Compiled kernels on a device, by name. Launched on torch's current stream, so graphs capture them."""

    def __init__(self, source: bytes, defines: dict[str, int], device: torch.device) -> None:
        """Raises CompilerMissingError."""
        major, minor = torch.cuda.get_device_capability(device)
        options = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17", *(f"-D{k}={v}" for k, v in defines.items())]
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module = _POINTER()
        self._functions: dict[str, ctypes.c_void_p] = {}
        torch.cuda.synchronize(device)  # torch's context is then the current one
        self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), _compiled(source, options)))

    def launch(self, name: str, grid: tuple[int, int], threads: int, arguments: Sequence[Any]) -> None:
        """`arguments`: ctypes values, as the kernel takes them."""
        addresses = (_POINTER * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        stream = _POINTER(torch.cuda.current_stream().cuda_stream)
        self._check(
            self._driver.cuLaunchKernel(self._function(name), *grid, 1, threads, 1, 1, 0, stream, addresses, None)
        )

    def _function(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            found = _POINTER()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(found), self._module, name.encode()))
            self._functions[name] = found
        return self._functions[name]

    def _check(self, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"CUDA: {text.value.decode() if text.value else f'error {code}'}")


def _compiled(source: bytes, options: Sequence[str]) -> bytes:
    """From the cache if it is there: compiling takes seconds."""
    compiler = Compiler()
    identity = b"\0".join([source, " ".join(options).encode(), compiler.version.encode()])
    name = f"gpu-{hashlib.sha256(identity).hexdigest()[:16]}"
    if kept := _kept(name):
        return kept
    code = compiler.compile(source, options)
    try:
        path = private_folder("kernels") / f"{name}-{hashlib.sha256(code).hexdigest()}.cubin"
        write_whole(path, code, OWNER_WRITES)
    except (OSError, SlipstreamError) as error:
        log.warning("the GPU kernels are compiled at every start, because they can't be cached: %s", error)
    return code


def _kept(name: str) -> bytes | None:
    """The code in the cache, if its bytes match the hash in its name and no other user can write it."""
    try:
        folder = private_folder("kernels")
    except SlipstreamError:
        return None
    for path in folder.glob(f"{name}-*.cubin"):
        data = read_private(path)
        if data is not None and path.stem == f"{name}-{hashlib.sha256(data).hexdigest()}":
            return data
    return None
