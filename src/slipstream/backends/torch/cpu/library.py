"""The compiled kernels: built once per machine with the C compiler at hand, then loaded from the cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path

from slipstream.cache import cache_folder

log = logging.getLogger("slipstream")

_FUSE = "off" if platform.machine().lower() in ("x86_64", "amd64", "i686") else "fast"  # kernels.c says why
_OPTIMISE = ["-O3", f"-ffp-contract={_FUSE}", "-march=native", "-std=gnu11", "-fPIC", "-shared"]
_POINTER, _LONG, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int
_SIGNATURES: dict[str, list[type]] = {
    "slip_set_threads": [_INT],
    "slip_linear": [_POINTER, _INT, _POINTER, _LONG, _LONG, _LONG, _POINTER, _INT, _POINTER],
    "slip_embed": [_POINTER, _INT, _POINTER, _LONG, _LONG, _POINTER],
    "slip_rms_norm": [_POINTER, _POINTER, _FLOAT, _LONG, _LONG, _POINTER],
    "slip_swiglu": [_POINTER, _LONG, _LONG, _POINTER],
    "slip_rope_write": [_POINTER, _POINTER, _LONG, _LONG, _LONG, *[_POINTER] * 4, _FLOAT, _POINTER, _POINTER],
    "slip_attend": [
        _POINTER,
        _POINTER,
        _LONG,
        _LONG,
        _LONG,
        _LONG,
        _POINTER,
        _POINTER,
        _LONG,
        _INT,
        _POINTER,
        _POINTER,
    ],
}


@functools.cache
def kernels() -> ctypes.CDLL | None:
    """The library, or None (said once, with the reason) where it can't be built."""
    try:
        library = ctypes.CDLL(str(_built()))
    except (OSError, subprocess.CalledProcessError) as error:
        detail = error.stderr.strip().splitlines()[-1:] if isinstance(error, subprocess.CalledProcessError) else error
        log.warning(
            "the CPU kernels could not be built (%s): decoding falls back to plain torch, several times slower. "
            "Install gcc (Debian: apt install gcc; macOS: xcode-select --install) and run again.", detail,
        )  # fmt: skip
        return None
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


def _built() -> Path:
    source = files("slipstream.backends.torch.cpu").joinpath("kernels.c").read_bytes()
    compiler = _compiler()
    identity = b"\0".join([source, " ".join([*compiler, *_OPTIMISE]).encode(), _cpu_identity()])
    target = cache_folder("kernels") / f"cpu-{hashlib.sha256(identity).hexdigest()[:16]}.so"
    if not target.exists():
        _compile(compiler, source, target)
    return target


def _compiler() -> list[str]:
    """$CC, which may carry arguments (`ccache gcc`), or the first compiler found."""
    chosen = shlex.split(os.environ.get("CC", ""))
    found = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    if not chosen and found is None:
        raise FileNotFoundError("no C compiler found")
    return chosen or [str(found)]


def _cpu_identity() -> bytes:
    """Tells machines apart that share a home folder: code built for one may not run on another."""
    flags = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}".encode()


def _compile(compiler: list[str], source: bytes, target: Path) -> None:
    """Compiles beside the target and renames, so that a killed or a second build leaves nothing half-made."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        code, output = Path(scratch) / "kernels.c", Path(scratch) / "kernels.so"
        code.write_bytes(source)
        command = [*compiler, *_OPTIMISE, str(code), "-o", str(output), "-lm"]
        try:
            subprocess.run([*command, "-fopenmp"], check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError:  # a compiler without OpenMP still builds working kernels
            subprocess.run(command, check=True, capture_output=True, text=True)
        output.replace(target)
