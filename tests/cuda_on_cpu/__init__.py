"""The kernels of quantised.cu themselves, compiled for the CPU: threads are fibers, tensor cores are loops."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from slipstream.backends.torch.cuda import quantised_kernels
from slipstream.backends.torch.cuda.nvrtc import Argument, _as_c
from slipstream.backends.torch.cuda.quantised_kernels import QuantisedKernels
from slipstream.backends.torch.cuda.quantised_layout import CodeLayout

_HERE = Path(__file__).parent
_SOURCE = Path(quantised_kernels.__file__).with_name("quantised.cu")


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
            self._libraries[layout] = self._built(layout)
        library, values = self._libraries[layout], [_as_c(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        getattr(library, f"start_{name.split('_')[0]}")(getattr(library, name), pointers, *grid)

    def _built(self, layout: CodeLayout | None) -> ctypes.CDLL:
        defines = [f"-D{key}={value}" for key, value in layout.defines.items()] if layout else []
        built = self._folder / f"kernels-{'-'.join(map(str, layout.defines.values())) if layout else 'rows'}.so"
        if not built.exists():
            included = [
                part for path in (_HERE / "before.h", _SOURCE, _HERE / "after.h") for part in ("-include", path)
            ]
            flags = ["-std=gnu++17", "-O1", "-fno-inline", "-ffp-contract=off", "-w", "-shared", "-fPIC", *defines]
            command = ["g++", *flags, *included, "-x", "c++", "/dev/null", "-o", built]
            subprocess.run(command, check=True, capture_output=True, text=True)
        return ctypes.CDLL(str(built))
