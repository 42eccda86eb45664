"""Kernels in CUDA C++: compiled at run time with NVRTC, which torch ships, and cached per GPU and version.

A launch goes through the driver on torch's current stream, so a graph that is being captured takes it in.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import torch

from slipstream.backends.torch.code_cache import keep_code, kept_code
from slipstream.errors import SlipstreamError

log = logging.getLogger("slipstream")

Argument = torch.Tensor | int | float | ctypes.Structure  # a pointer, 32-bit numbers, or what is passed by value

HOPPER = "sm_90a"  # what is compiled for it alone: with its own instructions
_INCLUDE = re.compile(r'#include "(.+)"\n')
_UINT = ctypes.c_uint
_MAX_SHARED_BYTES, _SHARED_PERCENT = 8, 9  # CU_FUNC_ATTRIBUTE_…
_CLUSTER, _EARLY_START = 4, 6  # CU_LAUNCH_ATTRIBUTE_…: CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION
_TENSOR_TYPES = {torch.float16: 6, torch.bfloat16: 9}  # CU_TENSOR_MAP_DATA_TYPE_…
_SWIZZLE_128B, _PROMOTE_256B = 3, 3


def is_hopper(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.cuda is None:  # ROCm's devices have that type too
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, with numbers in it."""

    _fields_ = [("id", _UINT), ("pad", _UINT), ("values", _UINT * 16)]


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig"""

    _fields_ = [
        ("grid", _UINT * 3),
        ("block", _UINT * 3),
        ("shared_bytes", _UINT),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", _UINT),
    ]


class TensorMap(ctypes.Structure):
    """CUtensorMap: how the tensor memory accelerator finds a tensor."""

    _fields_ = [("opaque", ctypes.c_ubyte * 128)]


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
        self._shared_bytes = 0

    def launch(
        self, grid: Sequence[int], num_threads: int, arguments: Sequence[Argument], shared_bytes: int = 0,
        early: bool = False, cluster: int = 1,
    ) -> None:  # fmt: skip
        """Starts it on torch's current stream, with so many threads and bytes of shared memory in a block. `early`: it
        may start before the kernel before it has ended, and waits for that itself. `cluster`: blocks side by side that
        reach each other's shared memory.
        """
        if shared_bytes > self._shared_bytes:
            self._allow_shared(shared_bytes)
        values = [_as_c(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        attributes = [_Attribute(_EARLY_START, values=(_UINT * 16)(1))] if early else []
        if cluster > 1:
            attributes.append(_Attribute(_CLUSTER, values=(_UINT * 16)(cluster, 1, 1)))
        config = _LaunchConfig(
            (_UINT * 3)(*grid, *([1] * (3 - len(grid)))), (_UINT * 3)(num_threads, 1, 1), shared_bytes,
            torch.cuda.current_stream().cuda_stream, (_Attribute * 2)(*attributes), len(attributes),
        )  # fmt: skip
        status = _driver().cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None)
        _check(status, f"starting the kernel {self._name}")

    def _allow_shared(self, num_bytes: int) -> None:
        """Shared memory beyond the usual 48 KB has to be asked for, once for a kernel."""
        for attribute, value in ((_MAX_SHARED_BYTES, num_bytes), (_SHARED_PERCENT, 100)):
            status = _driver().cuFuncSetAttribute(self._function, attribute, value)
            _check(status, f"asking for shared memory for the kernel {self._name}")
        self._shared_bytes = num_bytes


def tensor_map(tensor: torch.Tensor, box: tuple[int, int], depth: int) -> TensorMap:
    """Of a matrix in 16 bits, in boxes of so many rows and columns, `depth` at a time: [depth, rows, columns]."""
    rows, columns = tensor.shape
    lines, width = box
    sizes = [(width, 1), (rows, columns), (columns // width, width)]
    return _described(tensor, sizes, (width, lines, depth))


def paired_map(tensor: torch.Tensor, width: int, pairs: int) -> TensorMap:
    """Of a matrix whose second half belongs to its first: a box has so many columns of `pairs` times eight rows of the
    one, each followed by the eight of the other.
    """
    rows, columns = tensor.shape
    sizes = [(width, 1), (8, columns), (2, rows // 2 * columns), (rows // 16, 8 * columns), (columns // width, width)]
    return _described(tensor, sizes, (width, 8, 2, pairs, 1))


def _described(tensor: torch.Tensor, sizes: Sequence[tuple[int, int]], box: Sequence[int]) -> TensorMap:
    """`sizes`: along each way, how many there are, and how many numbers lie from one to the next. Pieces of 16 bytes
    are exchanged by the number of their row, as tensor cores read them without conflicts.
    """
    count, item = len(sizes), tensor.element_size()
    room = ctypes.create_string_buffer(ctypes.sizeof(TensorMap) + 64)
    place = -(-ctypes.addressof(room) // 64) * 64
    status = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(place), _TENSOR_TYPES[tensor.dtype], count, ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * count)(*(size for size, _ in sizes)),
        (ctypes.c_uint64 * (count - 1))(*(apart * item for _, apart in sizes[1:])),
        (_UINT * count)(*box), (_UINT * count)(*([1] * count)), 0, _SWIZZLE_128B, _PROMOTE_256B, 0,
    )  # fmt: skip
    _check(status, "describing a tensor")
    return TensorMap.from_buffer_copy(ctypes.string_at(place, ctypes.sizeof(TensorMap)))


def cached_cubin(name: str, architecture: str, defines: Mapping[str, int]) -> bytes:
    """Code of NAME.cu for an architecture, from the cache or compiled. Raises NvrtcError."""
    identity = "\0".join((kernel_source(name), architecture, nvrtc_version(), *_flags(defines))).encode()
    stem = f"{name}-{architecture}-{hashlib.sha256(identity).hexdigest()[:16]}"
    if kept := kept_code(stem, ".cubin"):
        return kept[1]
    log.info("compiling the GPU kernel %s (once per GPU and version)", name)
    cubin = compile_cubin(name, architecture, defines)
    keep_code(cubin, stem, ".cubin")
    return cubin


def compile_cubin(name: str, architecture: str, defines: Mapping[str, int]) -> bytes:
    library, source = _nvrtc(), kernel_source(name).encode()
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(ctypes.byref(program), source, f"{name}.cu".encode(), 0, None, None)
    _check_nvrtc(created, name)
    try:
        flags = [f"--gpu-architecture={architecture}", "--std=c++17", *_flags(defines)]
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


def kernel_source(name: str) -> str:
    """NAME.cu, with what it includes."""
    folder = files(__package__)
    return _INCLUDE.sub(lambda found: folder.joinpath(found[1]).read_text(), folder.joinpath(f"{name}.cu").read_text())


def _flags(defines: Mapping[str, int]) -> list[str]:
    return [f"-D{name}={value}" for name, value in defines.items()]


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
