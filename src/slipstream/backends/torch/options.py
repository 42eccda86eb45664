"""TorchOptions: how a model is loaded, and on which device."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from typing import ClassVar

import torch

from slipstream.backend_choice import CODES_CAPABILITY
from slipstream.errors import UsageError
from slipstream.host import check_threads

log = logging.getLogger("slipstream")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ACTIVATIONS = ("auto", "int8", "fp")
KV_TYPES = ("auto", "q8_0")
KERNELS = ("auto", "triton")


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """None and `auto`: what suits this machine."""

    backend: ClassVar[str] = "torch"
    device: str = "auto"  # auto, cpu, cuda, cuda:1 …
    dtype: str = "auto"  # fp32, bf16, fp16; auto: fp32 on the CPU, bf16 on a GPU, fp16 on a GPU without bf16
    context_length: int | None = None  # at most the model's own
    kv_tokens: int | None = None  # tokens of all streams together that the cache holds
    exact: bool = False  # logits with the same bits regardless of other rows, if the kernels don't ensure that anyway
    threads: int | None = None
    # What a quantised weight is multiplied with: int8 (codes stay codes) or fp (they are unpacked to `dtype`).
    # auto: int8 where there are kernels for it and no dtype is asked for
    activations: str = "auto"
    kv_type: str = "auto"  # of keys and values: auto (floats, those of the activations) or q8_0 (8 bits)
    # On a GPU, for products of few rows with weights in 16 bits: triton, or auto (CUDA C++ where that is faster)
    kernels: str = "auto"

    def __post_init__(self) -> None:
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype!r} is unknown; expected auto, {', '.join(DTYPES)}")
        if self.activations not in ACTIVATIONS:
            raise UsageError(f"activations {self.activations!r} is unknown; expected {', '.join(ACTIVATIONS)}")
        if self.kv_type not in KV_TYPES:
            raise UsageError(f"kv_type {self.kv_type!r}: the torch backend has {', '.join(KV_TYPES)}")
        if self.kernels not in KERNELS:
            raise UsageError(f"kernels {self.kernels!r} are unknown; expected {', '.join(KERNELS)}")
        if self.activations == "int8" and self.dtype != "auto":
            raise UsageError(
                f"activations int8 keep the weights as the file has them, and dtype {self.dtype} unpacks them: use one "
                "of the two options"
            )
        for name in ("context_length", "kv_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more")
        check_threads("threads", self.threads)


def find_device(name: str) -> torch.device:
    """The device of this name, with its number. Raises UsageError."""
    device = _named("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else _named(name)
    if device.type == "cuda":
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    return device


def pick_device(name: str) -> torch.device:
    """Like `find_device`. Logs a warning if there is a GPU that is not used."""
    device = find_device(name)
    if device.type == "cuda":
        return device
    if torch.cuda.is_available():
        log.warning("running on the CPU although there is a GPU (%s): use --device cuda", torch.cuda.get_device_name())
    elif shutil.which("nvidia-smi"):
        log.warning("running on the CPU: there is an NVIDIA driver, but this torch (%s) sees no GPU", torch.__version__)
    return device


def _named(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device {name!r} is unknown; expected auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not supported; expected auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r}: this torch ({torch.__version__}) sees no CUDA device; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device {name!r}: there are {torch.cuda.device_count()} GPUs, counted from cuda:0")
    return device


def pick_dtype(name: str, device: torch.device) -> str:
    if name != "auto":
        return name
    if device.type == "cpu":
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp16"


def keeps_codes(options: TorchOptions, device: torch.device) -> bool:
    """Whether quantised weights stay as the file has them."""
    if options.activations == "fp" or options.dtype != "auto":
        return False
    if device.type == "cpu":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= CODES_CAPABILITY
