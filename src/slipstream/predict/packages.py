"""Installed packages that run models: torch and llama-cpp-python, of this Python or of another one.

No heavy imports: both are inspected without importing them here.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from slipstream.child import other_python, own_python
from slipstream.errors import UsageError
from slipstream.host import file_text
from slipstream.predict.gpus import ask

OTHER_PYTHON_S = 20.0  # limit for the other Python: llama-cpp-python loads its GPU libraries when it is imported


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """An installed Python package that runs models. `gpu_build`: CUDA 12.8, ROCm 6.4, Metal …; None: CPU only."""

    version: str
    gpu_build: str | None
    sees_gpu: bool | None  # None: unknown


@dataclass(frozen=True, slots=True)
class Packages:
    torch: InstalledPackage | None = None
    llama_cpp: InstalledPackage | None = None


def installed_torch(has_gpu: bool) -> InstalledPackage | None:
    """Version and build are read from torch/version.py (the metadata of some wheels leave out `+cpu`); the driver says
    whether CUDA programs see a GPU.
    """
    version, spec = _version("torch"), importlib.util.find_spec("torch")
    if version is None or spec is None or spec.origin is None:
        return None
    text = file_text(Path(spec.origin).with_name("version.py")) or ""
    stated = dict(re.findall(r"^(\w+)\b[^=\n]*= *'([^'\n]+)'", text, re.M))
    version = stated.get("__version__", version)
    build = _gpu_build(stated)
    if build is None and platform.system() == "Darwin" and has_gpu:
        build = "Metal"
    sees_gpu = has_gpu and build is not None
    return InstalledPackage(
        version, build, _cuda_devices() if sees_gpu and build and build.startswith("CUDA") else sees_gpu
    )


def _cuda_devices() -> bool | None:
    """Whether the CUDA driver finds a device. Runs in another process, because cuInit would bind this one to the
    GPU.
    """
    program = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); "
        "print(cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(n)) == 0 and n.value > 0)"
    )
    if platform.system() != "Linux":
        return None
    answer = ask(*own_python("-c", program))
    return answer is not None and answer.strip() == "True"


def installed_llama_cpp() -> InstalledPackage | None:
    """Runs in another process: importing it loads every GPU library it was built with."""
    version = _version("llama-cpp-python")
    if version is None:
        return None
    program = "import llama_cpp; print(llama_cpp.llama_supports_gpu_offload())"
    answer = (ask(*own_python("-c", program)) or "").strip()
    if answer not in ("True", "False"):
        return InstalledPackage(version, "unknown", None)
    return InstalledPackage(version, "GPU offload" if answer == "True" else None, answer == "True")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# -- of another Python ------------------------------------------------------------------------------------------------

# Imports the standard library first, so that a Python without packages answers too. torch is not imported: that takes
# seconds.
_PROGRAM = """
import json, os, re
found = {"python": True}
try:
    from importlib import metadata, util
    spec = util.find_spec("torch")
    if spec and spec.origin:
        text = open(os.path.join(os.path.dirname(spec.origin), "version.py")).read()
        stated = dict(re.findall(r"^(\\w+)\\b[^=\\n]*= *'([^'\\n]+)'", text, re.M))
        found["torch"] = {"version": metadata.version("torch"), **stated}
except Exception:
    pass
try:
    import llama_cpp
    found["llama_cpp"] = {"version": llama_cpp.__version__, "gpu": bool(llama_cpp.llama_supports_gpu_offload())}
except Exception:
    pass
print(json.dumps(found))
"""


def packages_of(python: str) -> Packages:
    """The packages of another Python. Raises UsageError if there is no Python at that path."""
    found = _asked(python)
    torch, llama_cpp = found.get("torch"), found.get("llama_cpp")
    seen = llama_cpp is not None and bool(llama_cpp["gpu"])
    return Packages(
        InstalledPackage(torch.get("__version__", torch["version"]), _gpu_build(torch), None) if torch else None,
        InstalledPackage(llama_cpp["version"], "GPU offload" if seen else None, seen) if llama_cpp else None,
    )


def _asked(python: str) -> dict[str, dict[str, str]]:
    if shutil.which(python) is None:
        what = "is a folder" if Path(python).is_dir() else "can't be run" if Path(python).exists() else "does not exist"
        raise UsageError(f"--python {python} {what}; expected the path of a Python, for example venv/bin/python")
    try:
        done = subprocess.run(
            other_python(python, _PROGRAM), capture_output=True, text=True, timeout=OTHER_PYTHON_S, check=False,
            stdin=subprocess.DEVNULL, errors="replace",
        )  # fmt: skip
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        if answer["python"] is True:
            return dict(answer)
    except subprocess.TimeoutExpired:
        raise UsageError(f"--python {python} did not answer within {OTHER_PYTHON_S:.0f} s") from None
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        pass
    raise UsageError(f"--python {python} is not a Python: it does not run a Python program")


def _gpu_build(stated: dict[str, str]) -> str | None:
    labels = {"cuda": "CUDA", "hip": "ROCm"}
    return next((f"{label} {stated[key]}" for key, label in labels.items() if key in stated), None)
