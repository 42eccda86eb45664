"""The kernels in CUDA C++ themselves, compiled for the CPU: threads are fibers."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from slipstream.backends.torch.cuda.kernels import hopper_products, nvrtc, streamed
from slipstream.backends.torch.cuda.kernels.hopper_products import HopperProducts, TileShape
from slipstream.backends.torch.cuda.kernels.nvrtc import Argument, Kernel, TensorMap, _as_c
from slipstream.backends.torch.cuda.kernels.products import Kind, Products
from slipstream.backends.torch.cuda.kernels.quantised_kernels import QuantisedKernels
from slipstream.backends.torch.cuda.kernels.quantised_layout import CodeLayout
from slipstream.backends.torch.cuda.kernels.streamed import StreamedProducts

_HERE = Path(__file__).parent


class KernelsOnCpu(QuantisedKernels):
    """`is_full`: as on a device that large products fill, where a block has two tiles of outputs."""

    def __init__(self, folder: Path, is_full: bool = False) -> None:
        self._device = torch.device("cpu")
        self._folder = folder
        self._enough_blocks = 0 if is_full else 1 << 30
        self._libraries: dict[CodeLayout | None, ctypes.CDLL] = {}

    def _launch(
        self, layout: CodeLayout | None, name: str, grid: tuple[int, int], arguments: Sequence[Argument]
    ) -> None:
        if layout not in self._libraries:
            self._libraries[layout] = _built(self._folder, "quantised", layout.defines if layout else {})
        library = self._libraries[layout]
        with _pointers(arguments) as pointers:
            getattr(library, f"start_{name.split('_')[0]}")(getattr(library, name), pointers, *grid)


class _OnCpu(Products):
    """On a device with so many multiprocessors: with few of them, blocks have many tiles."""

    def __init__(self, folder: Path, multiprocessors: int) -> None:
        Products.__init__(self, torch.bfloat16)
        self._folder = folder
        self._multiprocessors = multiprocessors
        self._kernels, self._maps = {}, {}

    def _describe(self, tensor: torch.Tensor, lines: int, depth: int = 1) -> TensorMap:
        words = (ctypes.c_uint64 * 4)(tensor.data_ptr(), *tensor.shape, lines)
        return TensorMap.from_buffer_copy(bytes(words).ljust(ctypes.sizeof(TensorMap), b"\0"))

    _describe_pairs = _describe


class StreamedOnCpu(_OnCpu, StreamedProducts):
    def _kernel(self, kind: Kind, row_tiles: int, depth: int) -> Kernel:
        return _KernelOnCpu(_built(self._folder, "streamed", streamed.defines_of(kind, row_tiles, depth, self._dtype)))


class HopperOnCpu(_OnCpu, HopperProducts):
    def _kernel(self, kind: Kind, shape: TileShape) -> Kernel:
        defines = hopper_products.defines_of(kind, shape, self._dtype)
        return _KernelOnCpu(_built(self._folder, "hopper_products", defines))


class _KernelOnCpu(Kernel):
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def launch(
        self, grid: Sequence[int], num_threads: int, arguments: Sequence[Argument], shared_bytes: int = 0,
        early: bool = False, cluster: int = 1,
    ) -> None:  # fmt: skip
        with _pointers(arguments) as pointers:
            self._library.start(pointers, *(*grid, 1)[:2], num_threads, cluster)


@contextmanager
def _pointers(arguments: Sequence[Argument]) -> Iterator[ctypes.Array[ctypes.c_void_p]]:
    """As cuLaunchKernel takes them. The values stay until the kernel has run."""
    values = [_as_c(argument) for argument in arguments]
    yield (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))


def _built(folder: Path, name: str, defines: Mapping[str, int]) -> ctypes.CDLL:
    built = folder / f"{name}-{'-'.join(map(str, defines.values()))}.so"
    if not built.exists():
        source = Path(nvrtc.__file__).with_name(f"{name}.cu")
        parts = (_HERE / "before.h", _HERE / f"{name}.h", source, _HERE / f"after_{name}.h")
        included = [word for path in parts for word in ("-include", path)]
        flags = ["-std=gnu++17", "-O1", "-fno-inline", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
        flags += [f"-D{key}={value}" for key, value in defines.items()]
        command = ["g++", *flags, *included, "-x", "c++", "/dev/null", "-o", built]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(built))
