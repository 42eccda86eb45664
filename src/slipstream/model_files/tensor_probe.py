"""Loads one tensor in a separate process, to tell a broken Python environment from a bad file.

First Slipstream's own reader loads the tensor with numpy alone. Then torch and the safetensors package of an
environment load the same tensor. If only the second fails, the file is good and the environment is broken.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.child import other_python, own_python
from slipstream.errors import ModelError
from slipstream.findings import Finding, blocks, rule
from slipstream.model_files.local_models import local_place
from slipstream.model_files.weight_files import DAMAGED
from slipstream.model_files.weights_gguf import check_gguf
from slipstream.model_files.weights_safetensors import check_file

LIMIT_S = 20.0

# Run with this project's Python. Prints the name and size of the smallest tensor, after reading all of its bytes.
READ = """
import json, sys
from pathlib import Path
from slipstream.model_files.tensor_probe import read_smallest
print(json.dumps(read_smallest(Path(sys.argv[1]))))
"""

# Run with any Python, so it imports nothing from Slipstream. Each printed line is a stage that was reached.
LOAD = """
import json, sys
def say(**values):
    print(json.dumps(values), flush=True)
path, name = sys.argv[1:]
try:
    import torch
except ImportError as error:
    say(stage="no torch" if error.name == "torch" else "import torch", error=str(error))
    sys.exit()
try:
    import safetensors
    from safetensors import safe_open
except ImportError as error:
    say(stage="no safetensors", error=str(error))
    sys.exit()
say(stage="versions", torch=str(torch.__version__), safetensors=str(safetensors.__version__))
try:
    with safe_open(path, framework="pt") as file:
        tensor = file.get_tensor(name)
    say(stage="loaded", total=float(tensor.to(torch.float32).sum()) if tensor.is_floating_point() else 0.0)
except Exception as error:
    say(stage="get_tensor", error=f"{type(error).__name__}: {error}")
"""

RUNTIME = rule(
    "weights-runtime-fault",
    "blocks",
    "The file is good, but torch or safetensors fails to load it",
    "The file is good: its header matches its size, and an independent reader loaded the tensor. The fault is in that "
    "Python environment: its torch and safetensors are incompatible or broken. Another copy of the model, or another "
    "model, would fail the same way.",
    "Install matching versions: {python} -m pip install --upgrade --force-reinstall torch safetensors (for vLLM: pip "
    "install --upgrade vllm in a new virtual environment, which selects matching versions).",
)
SOUND = rule(
    "weights-sound",
    "note",
    "The files are sound, so the failure in the log is not theirs",
    "Headers, sizes and samples of the weights are right, and a process of its own could read a tensor. What remains "
    "is the engine's process: weights were read while torch was in fake-tensor mode (tensors without data, as "
    "torch.compile and memory estimates use them), or its torch and safetensors are others than those tested.",
    "Start the engine without compiling (vLLM: --enforce-eager). Test its own environment: add --python PATH, the "
    "Python of the engine.",
)
SLOW = rule(
    "weights-load-slow",
    "slows",
    "Loading one small tensor takes too long",
    "The disk or network drive with the weights is very slow, or Python starts very slowly. Loading the whole model "
    "will be slow too.",
    "Copy the weights to a local disk and try again.",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child process ended: the lines of JSON it printed, and its error text."""

    lines: list[dict[str, Any]]
    error: str
    returncode: int | None  # None: it ran past the limit


def load_one_tensor(path: str | Path, python: str = sys.executable, limit_s: float = LIMIT_S) -> list[Finding]:
    """Loads the smallest tensor of a file or folder. Empty if that works, or if torch is not installed there.

    `python` is the interpreter of the environment to test. If an engine fails on a file for which this is empty, the
    fault is in the engine's process (its memory, a fake or meta device), not in the file or the versions.
    """
    try:
        file = _weights_file(local_place(path).path)
    except (ModelError, OSError) as error:
        return [DAMAGED.finding(str(error))]
    found = check_file(file).findings if file.suffix == ".safetensors" else check_gguf(file)
    if blocks(found):
        return found[:1]  # the file's own fault, and the probe would only say that it can't be read
    read = _run(own_python("-c", READ, str(file)), limit_s)
    if read.returncode is None:
        return [SLOW.finding(f"{file}: reading one tensor took more than {limit_s:.0f} s")]
    if read.returncode != 0 or not read.lines:
        return [DAMAGED.finding(f"{file}: can't read a tensor: {_last_line(read.error)}")]
    if file.suffix != ".safetensors":
        return []  # torch does not read GGUF
    name = read.lines[0]["name"]
    return _judge(_run(other_python(python, LOAD, str(file), name), limit_s), file, name, python, limit_s)


def _judge(load: Outcome, file: Path, name: str, python: str, limit_s: float) -> list[Finding]:
    versions = next((line for line in load.lines if line["stage"] == "versions"), {})
    last = load.lines[-1] if load.lines else {"stage": "start"}
    where = f"torch {versions['torch']}, safetensors {versions['safetensors']}" if versions else "unknown versions"
    if last["stage"] in ("loaded", "no torch", "no safetensors"):
        return []
    if load.returncode is None:
        return [SLOW.finding(f"{file}: torch took more than {limit_s:.0f} s to import and load one tensor ({where})")]
    error = last.get("error") or _last_line(load.error) or f"exit code {load.returncode}"
    seen = f"{file.name}: {name!r} loads without torch; in {python} ({where}) it fails with: {error}"
    return [RUNTIME.finding(seen, python=python)]


def _run(command: list[str], limit_s: float) -> Outcome:
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit_s, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        return Outcome(_json_lines(error.stdout or b""), "", None)
    except OSError as error:  # no such interpreter
        return Outcome([], str(error), 127)
    return Outcome(_json_lines(done.stdout), done.stderr.decode(errors="replace"), done.returncode)


def _json_lines(output: bytes) -> list[dict[str, Any]]:
    """The JSON lines printed by the probe; libraries print to stdout too."""
    found = []
    for line in output.decode(errors="replace").splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _weights_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for pattern in ("*.safetensors", "*.gguf"):
        if files := sorted(path.glob(pattern)):
            return files[0]
    raise FileNotFoundError(f"{path} has no weights file")


def read_smallest(path: Path) -> dict[str, object]:
    """Reads every byte of the smallest non-empty tensor. Runs in the child process; errors pass through."""
    if path.suffix == ".safetensors":
        from slipstream.models.hf.safetensors_file import read_file_header

        stored = min((t for t in read_file_header(path).values() if t.num_bytes), key=lambda t: t.num_bytes)
        content = stored.data[stored.start : stored.start + stored.num_bytes]
        return {"name": stored.name, "num_bytes": len(content)}
    from slipstream.model_files.weights_gguf import stored_bytes
    from slipstream.models.gguf.header import read_header

    header = read_header(path)
    info = min(header.tensors.values(), key=lambda info: stored_bytes(info) or sys.maxsize)
    return {"name": info.name, "num_bytes": len(header.data[info.offset : info.offset + (stored_bytes(info) or 0)])}
