"""A trial load of a GGUF file in a process of its own, without its weights.

llama.cpp checks a file in its own way, and what it does not expect can end the whole process: a damaged file would take
the caller with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from slipstream.backends.llamacpp.library import last_complaint, library, listening
from slipstream.cache import private_folder
from slipstream.child import own_python
from slipstream.errors import SlipstreamError, UnsupportedModelError
from slipstream.models.gguf.file import GgufFile

_LIMIT_S = 20.0
_SOURCE_FOLDERS = re.compile(r"\S+/(?=[^\s/]+\.cpp:)")  # where the library was built
_REFUSED = 3  # exit code
_TRIAL_TOKENS = 32
_TRIAL = 2  # a number for what is tried: more than what passed before
_PROGRAM = "import sys\nfrom slipstream.backends.llamacpp.trial import attempt\nsys.exit(attempt(sys.argv[1]))"


def refuse_unloadable(file: GgufFile) -> None:
    """Raises UnsupportedModelError if llama.cpp can't load the file. Takes half a second once for each file."""
    lib = library()
    if not hasattr(lib.llama_model_default_params(), "no_alloc"):  # an older library: loading itself will show
        return
    record = _record(file.path, str(lib.__version__))
    if record is not None and record.exists():
        return
    reason = _unusual_type(file) or _reason(file.path)
    if reason:
        raise UnsupportedModelError(
            f"llama.cpp ({lib.__version__}) can't load {file.path}, a GGUF file of the architecture "
            f"{file.architecture[:80]!r}: {reason}. A newer llama-cpp-python may support it"
        )
    with suppress(OSError):
        if record is not None:
            record.touch()


def _unusual_type(file: GgufFile) -> str:
    """Biases and norms are added and multiplied as they are stored, and on the CPU float32 is the only type for which
    llama.cpp can: others end the process at the first step. Its own tools write no others.
    """
    for name, kind in file.vectors.items():
        if kind != "F32" and name.endswith((".bias", "norm.weight")):
            return f"it can't compute with the tensor {name[:200]!r} of type {kind}; expected F32"
    return ""


def attempt(path: str) -> int:
    """Loads the file without its weights, and plans a step of it. Runs in the child; returns its exit code and prints
    llama.cpp's reason.
    """
    lib = library()
    params: Any = lib.llama_model_default_params()
    params.no_alloc, params.load_mode, params.n_gpu_layers, params.use_extra_bufts = True, 0, 0, False
    with listening():
        model = lib.llama_model_load_from_file(path.encode(), params)
        context = model and lib.llama_init_from_model(model, _small_context(lib))
    if not context:
        print(last_complaint())
    return 0 if context else _REFUSED


def _small_context(lib: Any) -> Any:
    """Without weights a context takes no memory either, but its steps are planned: more than loading, this finds sizes
    that contradict each other.
    """
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = _TRIAL_TOKENS
    params.offload_kqv = params.op_offload = False
    return params


def _reason(path: Path) -> str:
    """Why the file can't be loaded; empty if it can, or if the disk is too slow to tell."""
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
    try:
        done = subprocess.run(
            own_python("-c", _PROGRAM, str(path)),
            capture_output=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL, env=environment, text=True,
            errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    if done.returncode == 0:
        return ""
    lines = (done.stdout if done.returncode == _REFUSED else done.stderr).strip().splitlines()
    said = lines[-1][-300:] if lines else f"exit code {done.returncode}"
    return said if done.returncode == _REFUSED else f"it ended the process ({_SOURCE_FOLDERS.sub('', said)})"


def _record(path: Path, version: str) -> Path | None:
    """The file whose presence says that this one was loaded before; None without a cache."""
    try:
        status = path.stat()
        facts = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino, version, sys.platform, _TRIAL]
        return private_folder("llamacpp") / hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    except (SlipstreamError, OSError):
        return None
