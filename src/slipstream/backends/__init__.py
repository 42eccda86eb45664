"""Backends by name, imported when used, and the choice of a backend for a model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.backend_choice import BackendChoice, BackendFacts, best_backend
from slipstream.errors import UsageError
from slipstream.host import c_compiler, free_memory

if TYPE_CHECKING:
    from slipstream.backends.llamacpp.options import LlamaCppOptions
    from slipstream.backends.torch.options import TorchOptions
    from slipstream.core.protocols import Model
    from slipstream.models.checkpoint import Checkpoint
    from slipstream.models.gguf.checkpoint import GgufCheckpoint
    from slipstream.models.gguf.file import GgufFile
    from slipstream.models.text.tokenizer import Tokenizer

    BackendOptions = TorchOptions | LlamaCppOptions

AUTO = "auto"
Report = Callable[[str, float], None]  # what is being loaded, and the share that is done


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """How models use the machine, for all backends; each backend converts it to its own options."""

    device: str = AUTO
    dtype: str = AUTO
    context_length: int | None = None
    threads: int | None = None
    exact: bool = False
    gpu_layers: int | None = None
    kv_type: str = AUTO
    activations: str = AUTO
    kernels: str = AUTO


@dataclass(frozen=True, slots=True)
class BackendRoom:
    """Free bytes of the devices that a model would be loaded to, and how it is held there."""

    gpus: tuple[int, ...] = ()
    main: int = 0  # main memory; 0: not used
    weight_bytes: float | None = None  # bytes per weight; None: as stored
    keeps_codes: bool = False  # quantised weights stay as stored


@dataclass(frozen=True, slots=True)
class Backend:
    options: Callable[[MachineOptions], BackendOptions]
    open: Callable[[str | Path], Any]  # reads and checks headers and the vocabulary, no weights. Raises ModelError
    load: Callable[[Any, BackendOptions | None, Report], tuple[Model, Tokenizer]]  # what `open` gave
    room: Callable[[BackendOptions | None], BackendRoom]


def _torch_options(machine: MachineOptions) -> TorchOptions:
    from slipstream.backends.torch.options import TorchOptions

    if machine.gpu_layers is not None:
        raise UsageError(
            "--gpu-layers is an option of the llamacpp backend, but this model uses torch: add --backend llamacpp"
        )
    return TorchOptions(
        device=machine.device,
        dtype=machine.dtype,
        context_length=machine.context_length,
        threads=machine.threads,
        exact=machine.exact,
        activations=machine.activations,
        kv_type=machine.kv_type,
        kernels=machine.kernels,
    )


def _open_checkpoint(spec: str | Path) -> Checkpoint:
    from slipstream.models import open_checkpoint

    return open_checkpoint(spec)


def _load_torch(checkpoint: Checkpoint, options: BackendOptions | None, report: Report) -> tuple[Model, Tokenizer]:
    from slipstream.backends.torch.load import load_model

    model = load_model(checkpoint, options, lambda share: report(checkpoint.name, share))  # type: ignore[arg-type]
    return model, checkpoint.tokenizer


def _torch_room(options: BackendOptions | None) -> BackendRoom:
    from slipstream.backends.torch.memory import free_bytes
    from slipstream.backends.torch.options import DTYPES, TorchOptions, find_device, keeps_codes, pick_dtype

    chosen = options if isinstance(options, TorchOptions) else TorchOptions()
    device = find_device(chosen.device)
    weight_bytes = DTYPES[pick_dtype(chosen.dtype, device)].itemsize
    free = free_bytes(device)
    codes = keeps_codes(chosen, device)
    return (
        BackendRoom((free,), 0, weight_bytes, codes)
        if device.type == "cuda"
        else BackendRoom((), free, weight_bytes, codes)
    )


def _llamacpp_options(machine: MachineOptions) -> LlamaCppOptions:
    from slipstream.backends.llamacpp.options import LlamaCppOptions

    if machine.dtype != AUTO:
        raise UsageError(
            f"--dtype {machine.dtype} is an option of the torch backend; llama.cpp uses the types in the file"
        )
    for name in ("activations", "kernels"):
        if getattr(machine, name) != AUTO:
            raise UsageError(
                f"--{name} {getattr(machine, name)} is for the torch backend, and this model uses llamacpp: add "
                "--backend torch"
            )
    if machine.device not in (AUTO, "cpu", "cuda"):
        raise UsageError(
            f"--device {machine.device}: the llamacpp backend supports auto, cpu and cuda, and --gpu-layers"
        )
    asked = {"cpu": 0, "cuda": -1}.get(machine.device)
    return LlamaCppOptions(
        n_gpu_layers=asked if machine.gpu_layers is None else machine.gpu_layers,
        context_length=machine.context_length,
        threads=machine.threads,
        exact=machine.exact,
        kv_type=machine.kv_type,  # type: ignore[arg-type]  # checked there
    )


def _open_gguf(spec: str | Path) -> GgufFile:
    from slipstream.backends.llamacpp.library import library
    from slipstream.backends.llamacpp.trial import refuse_unloadable
    from slipstream.models.gguf.file import open_gguf_file

    library()  # report a missing extra before the file is read
    file = open_gguf_file(spec)
    refuse_unloadable(file)
    return file


def _load_llamacpp(file: GgufFile, options: BackendOptions | None, report: Report) -> tuple[Model, Tokenizer]:
    from slipstream.backends.llamacpp.load import load_model

    model = load_model(file, options, lambda share: report(file.name, share))  # type: ignore[arg-type]
    return model, file.tokenizer


def _llamacpp_room(options: BackendOptions | None) -> BackendRoom:
    from slipstream.backends.llamacpp.library import library
    from slipstream.backends.llamacpp.offload import find_devices

    layers = options.n_gpu_layers if options else None  # type: ignore[union-attr]
    devices = find_devices() if library().llama_supports_gpu_offload() and layers != 0 else ()
    gpus = tuple(device.free_bytes for device in devices)
    is_split = layers is not None and layers > 0
    return BackendRoom(gpus, free_memory() if is_split or not gpus else 0)


BACKENDS = {
    "torch": Backend(_torch_options, _open_checkpoint, _load_torch, _torch_room),
    "llamacpp": Backend(_llamacpp_options, _open_gguf, _load_llamacpp, _llamacpp_room),
}


def choose_backend(
    spec: str | Path, wanted: str = AUTO, device: str = AUTO, needs_layers: bool = False
) -> BackendChoice:
    """The backend for a model, and the reason. `needs_layers`: a drafter needs parts of the model, such as early-exit.

    Raises UsageError for an unknown name, ModelNotFoundError if the model does not exist.
    """
    if wanted != AUTO:
        if wanted not in BACKENDS:
            raise UsageError(f"unknown backend {wanted!r}; expected {AUTO}, {', '.join(BACKENDS)}")
        return BackendChoice(wanted, "as requested", was_open=False)
    from slipstream.models.sources.builtin import BUILTIN_NAMES
    from slipstream.models.sources.spec import locate

    facts = BackendFacts(
        is_builtin=lambda: str(spec) in BUILTIN_NAMES,
        has_llama_cpp=lambda: find_spec("llama_cpp") is not None,
        is_gguf=lambda: not locate(spec).path.is_dir(),
        needs_layers=lambda: needs_layers,
        torch_has_gpu=lambda: device != "cpu" and _torch_sees_a_gpu(),
        torch_runs_it=lambda: _opened(locate(spec).path) is not None,
        llama_cpp_has_gpu=lambda: device != "cpu" and _llama_cpp_sees_a_gpu(),
        torch_runs_codes=lambda: bool(c_compiler()) and _has_codes(locate(spec).path),
    )
    return best_backend(facts)


def _torch_sees_a_gpu() -> bool:
    if shutil.which("nvidia-smi") is None:  # avoids importing torch on most machines without a GPU
        return False
    import torch

    return torch.cuda.is_available()


def _llama_cpp_sees_a_gpu() -> bool:
    """One that torch has no kernels for, such as Apple's."""
    from slipstream.backends.llamacpp.library import library
    from slipstream.backends.llamacpp.offload import find_devices
    from slipstream.errors import MissingDependencyError

    try:
        return bool(library().llama_supports_gpu_offload() and find_devices())
    except MissingDependencyError:
        return False


def _has_codes(path: Path) -> bool:
    """Whether all matrices are quantised in ways that the CPU kernels multiply with.

    That is faster than llama.cpp (benchmarks/results/2026-11-16-quantised.md); floats are not.
    """
    from slipstream.errors import DamagedModelError
    from slipstream.models.tensors import expected_tensors

    try:
        checkpoint = _opened(path)
    except DamagedModelError:
        return True  # loading it there says what is wrong, with the doctor's finding
    if checkpoint is None:
        return False
    shapes = expected_tensors(checkpoint.config).items()
    return all(checkpoint.quant_format(name) for name, shape in shapes if len(shape) == 2)


def _opened(path: Path) -> GgufCheckpoint | None:
    """A GGUF file as the torch backend opens it; None if it can't run it. Raises DamagedModelError."""
    from slipstream.errors import UnsupportedModelError
    from slipstream.models.gguf.checkpoint import open_gguf

    try:
        return open_gguf(path, path.stem)
    except UnsupportedModelError:
        return None
