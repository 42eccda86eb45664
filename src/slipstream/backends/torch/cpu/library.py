"""The compiled kernels: built once per machine with the installed C compiler, then loaded from the cache if the file is
unchanged.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import platform
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path

from slipstream.backends.torch.code_cache import keep_code, kept_code
from slipstream.host import c_compiler

log = logging.getLogger("slipstream")

# The effect of plain torch instead of the kernels, for messages.
FALLBACK_COST = (
    "which is several times slower and rounds differently: if two tokens are almost equally likely, the answer may "
    "differ from that of the kernels and, without --exact, from that of plain decoding"
)
_FUSE = "off" if platform.machine().lower() in ("x86_64", "amd64", "i686") else "fast"  # kernels.c says why
_OPTIMISE = ["-O3", f"-ffp-contract={_FUSE}", "-march=native", "-std=gnu11", "-fPIC", "-shared"]
_POINTER, _LONG, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int
_ROOM = [_POINTER, _LONG]  # floats for one call, and how many
# slip_swiglu, slip_rope_write and slip_attend are for tests: the product runs them inside of slip_forward.
_SIGNATURES: dict[str, list[type]] = {
    "slip_set_threads": [_INT],
    "slip_embed": [_POINTER, _POINTER, _LONG, _POINTER],
    "slip_rms_norm": [_POINTER, _POINTER, _FLOAT, _LONG, _LONG, _POINTER],
    "slip_swiglu": [_POINTER, _LONG, _LONG, _POINTER],
    "slip_rope_write": [_POINTER, _POINTER, _POINTER],
}
_COUNTS: dict[str, list[type]] = {  # those that return a number
    "slip_forward": [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, *_ROOM],
    "slip_linear": [_POINTER, _POINTER, _LONG, _INT, _POINTER, *_ROOM],
    "slip_attend": [_POINTER, _POINTER, _POINTER, _POINTER, *_ROOM],
    "slip_head_layer": [_POINTER, _POINTER, _POINTER, _POINTER, *_ROOM],
    "slip_read_features": [_POINTER, _POINTER, _POINTER, _POINTER, *_ROOM],
    "slip_draft_chains": [_POINTER, _POINTER, _LONG, _POINTER, _POINTER, _POINTER, _POINTER, *_ROOM],
    "slip_team": [],
    "slip_choose": [_POINTER, _LONG, ctypes.c_double, ctypes.c_uint64],
}
_SOURCES = ("kernels.c", "quantised.c", "layer.c")  # one after the other, as one file


@functools.cache
def kernels() -> ctypes.CDLL | None:
    """The library, or None if it can't be built (logged once, with the reason)."""
    try:
        library = _load()
    except (OSError, subprocess.CalledProcessError) as error:
        detail = error.stderr.strip().splitlines()[-1:] if isinstance(error, subprocess.CalledProcessError) else error
        log.warning(
            "the CPU kernels could not be built (%s): decoding falls back to plain torch, %s. "
            "Install gcc (Debian: apt install gcc; macOS: xcode-select --install) and run again.",
            detail, FALLBACK_COST,
        )  # fmt: skip
        return None
    return declared(library)


def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The same library; its functions know their types."""
    for table, result in ((_SIGNATURES, None), (_COUNTS, _LONG)):
        for name, arguments in table.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
    return library


def kernel_source() -> bytes:
    folder = files("slipstream.backends.torch.cpu")
    return b"\n".join(folder.joinpath(name).read_bytes() for name in _SOURCES)


def _load() -> ctypes.CDLL:
    """The library from the cache, else compiled and cached. Without a usable cache it is compiled at every start."""
    source = kernel_source()
    compiler = c_compiler()
    if not compiler:
        raise FileNotFoundError("no C compiler found")
    identity = b"\0".join([source, " ".join([*compiler, *_OPTIMISE]).encode(), _cpu_identity()])
    name = f"cpu-{hashlib.sha256(identity).hexdigest()[:16]}"
    if kept := kept_code(name, ".so"):
        return ctypes.CDLL(str(kept[0]))
    with tempfile.TemporaryDirectory(prefix="slipstream-") as scratch:
        built = _compile(compiler, source, Path(scratch))
        path = keep_code(built.read_bytes(), name, ".so") or built
        return ctypes.CDLL(str(path))  # it stays loaded when the scratch folder is removed


def _cpu_identity() -> bytes:
    """Identifies the machine, since machines may share a home folder and code built for one may not run on another."""
    flags = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}".encode()


def _compile(compiler: list[str], source: bytes, scratch: Path) -> Path:
    code, output = scratch / "kernels.c", scratch / "kernels.so"
    code.write_bytes(source)
    command = [*compiler, *_OPTIMISE, str(code), "-o", str(output), "-lm"]
    try:
        subprocess.run([*command, "-fopenmp"], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError:  # a compiler without OpenMP still builds working kernels
        subprocess.run(command, check=True, capture_output=True, text=True)
    return output
