"""The memory that target and draft need in an engine, line by line; `placement` has the devices that it is on.

The doctor, `pairs`, `plan` and the check before a model is loaded count with it. What Slipstream itself allocates is
planned where it is done: `backends/torch/memory` for a loaded model, `train/memory` for a training run.

Sizes are bytes; a GB is 10^9 bytes, and a card sold as 24 GB has 24 GiB (25.8 GB). Weights count as held, and the KV
cache as the engine keeps it. Buffers, CUDA graphs and the engine's own memory are typical values, marked as such.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from slipstream.errors import UsageError
from slipstream.predict.gpus import Vendor
from slipstream.predict.machine import Machine
from slipstream.predict.sizes import KV_BYTES, KvPolicy, KvType, Sizes, kv_bytes

GIB = 1 << 30
MB = 1_000_000
ASSUMED_CONTEXT = 8192  # tokens, where none was given: a chat or a file of code
MAX_CONTEXT = 1 << 30  # no model has such a context: a larger number is a mistake
UNKNOWN_VOCAB = 128_256
BUFFERED_BYTES = 24  # bytes per number of a row's hidden state: several copies, the largest a few times as wide

AS_STORED = "as stored"
# Bytes in memory over those of the file. Codes of 5 and 6 bits take 8 bits on a CPU: 1.00 was measured for a file of
# Q4_1 and Q8_0, 1.13 for Q4_K_M.
CODES_SHARE = 1.15
# On a GPU they take 6 bits: 1.04 was measured for Q4_K_M.
GPU_CODES_SHARE = 1.06

Split = Literal["layers", "tensor", "none"]


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """How an engine uses memory, and what it adds. Bytes are estimates, so the lines of a plan say "typical"."""

    split: Split  # on several GPUs: whole layers, a share of every layer, or one GPU only
    each_gpu: int  # context, libraries, work space
    graphs: int  # captured graphs, on each GPU
    prompt_rows: int  # rows of a prompt in one forward
    logit_rows: int  # rows with reserved logits
    usable: float = 1.0  # share of a GPU that it uses
    kv_types: tuple[KvType, ...] = ("f16", "q8", "q4")
    weight_bytes: float | None = None  # bytes per weight on a GPU, if not as stored
    cpu_weight_bytes: float | None = None  # the same in main memory
    keeps_codes: bool = False  # in main memory, quantised weights stay about as they are stored
    gpu_keeps_codes: bool = False  # the same on a GPU
    cpu_number_bytes: float | None = None  # bytes per number of a KV cache of floats in main memory, if not 2
    q8_number_bytes: float | None = None  # bytes per number of an 8-bit KV cache, if not as in llama.cpp
    in_main: int = 300 * MB  # Python or a server, libraries: where it runs on the CPU
    keeps_windows: bool = True  # its cache forgets what is outside a sliding window
    keeps_latent: bool = True  # its cache keeps the compressed form of MLA
    offloads: bool = False  # keeps the layers that do not fit on a GPU in main memory, and runs them on the CPU
    needs_gpu: bool = False  # does not run on a machine without one
    vendors: tuple[Vendor, ...] = ("nvidia", "amd", "apple")  # of the GPUs that it uses
    package: Literal["torch", "llama_cpp"] | None = None  # of this environment, which must see the GPU
    choose: Callable[[Sizes, Machine | None], EngineMemory] | None = None  # depends on model and machine

    def for_model(self, sizes: Sizes, machine: Machine | None) -> EngineMemory:
        return self.choose(sizes, machine) if self.choose else self

    @property
    def kv_policy(self) -> KvPolicy:
        return KvPolicy(self.keeps_windows, self.keeps_latent, window_margin=self.prompt_rows)


class MemoryUser(Protocol):
    """An engine: its name in texts, and how it uses memory."""

    @property
    def title(self) -> str: ...

    @property
    def memory(self) -> EngineMemory: ...


@dataclass(frozen=True, slots=True)
class Need:
    """What a workload needs. `is_assumed`: nobody gave the context, so a shorter one would do."""

    context: int = ASSUMED_CONTEXT  # tokens of prompt and answer
    kv: KvType = "f16"
    is_assumed: bool = False
    batch: int = 1  # requests at the same time, for the prediction of speed

    @classmethod
    def of(cls, target: Sizes, context: int | None, kv: KvType = "f16", batch: int = 1) -> Need:
        """`context` None: an assumed length, at most the target's own. Raises UsageError for a length out of range."""
        if context is None:
            return cls(min(ASSUMED_CONTEXT, target.context_length or ASSUMED_CONTEXT), kv, True, batch)
        if not 1 <= context <= MAX_CONTEXT:
            raise UsageError(f"a context of {context:,} tokens; expected 1 to {MAX_CONTEXT:,}")
        return cls(context, kv, batch=batch)


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Free bytes: of each GPU, and of main memory. Main memory 0: not to be used, or not known."""

    gpus: tuple[int, ...] = ()
    main: int = 0
    machine: Machine | None = None  # None: devices that were only stated

    @classmethod
    def of(cls, machine: Machine, engine: EngineMemory) -> MemoryRoom:
        """What this engine can use of a machine: its GPUs, and main memory, which Apple's GPUs share."""
        package = getattr(machine, engine.package) if engine.package else None
        sees_gpus = engine.package is None or (package is not None and package.sees_gpu is not False)
        gpus = machine.gpus if sees_gpus and all(gpu.vendor in engine.vendors for gpu in machine.gpus) else ()
        shared = sum(gpu.memory_free for gpu in gpus if gpu.vendor == "apple")
        main = max(machine.memory_free - shared, 0)
        return cls(tuple(gpu.memory_free for gpu in gpus), main if engine.offloads or not gpus else 0, machine)


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """A line of the plan. `place`: split over all devices, on one of them, or on each of them."""

    label: str
    num_bytes: int
    why: str
    place: Literal["split", "one", "each"]
    of_draft: bool = False


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What is placed, where, and by which engine. `room` has the GPUs of all machines, those of the first one first."""

    target: Sizes
    draft: Sizes | None
    need: Need
    room: MemoryRoom
    user: MemoryUser
    engine: EngineMemory
    nodes: int = 1

    @property
    def sharing(self) -> int:
        """GPUs per machine, which share every layer of that machine."""
        return len(self.room.gpus) // self.nodes

    @property
    def on_gpu(self) -> bool:
        return bool(self.room.gpus)


def memory_parts(request: MemoryRequest) -> list[MemoryItem]:
    parts = _model_parts(request, request.target, of_draft=False)
    if request.draft:
        parts += _model_parts(request, request.draft, of_draft=True)
    engine, title = request.engine, request.user.title
    if not request.on_gpu:
        return [*parts, MemoryItem("engine", engine.in_main, f"{title} itself, typical", "each")]
    if engine.graphs:
        parts.append(MemoryItem("graphs", engine.graphs, f"typical of {title}, each GPU", "each"))
    why = f"context and libraries of {title}, typical, each GPU"
    return [*parts, MemoryItem("engine", engine.each_gpu, why, "each")]


def _model_parts(request: MemoryRequest, sizes: Sizes, *, of_draft: bool) -> list[MemoryItem]:
    who = "draft" if of_draft else "target"
    engine, need = request.user.memory.for_model(sizes, request.room.machine), request.need
    where: Literal["split", "one"] = "one" if of_draft and engine.split == "layers" else "split"
    per_weight = engine.weight_bytes if request.on_gpu else engine.cpu_weight_bytes
    keeps_codes = engine.gpu_keeps_codes if request.on_gpu else engine.keeps_codes
    if keeps_codes and sizes.is_fp8 and request.on_gpu and not sizes.has_fp8_blocks:
        per_weight = sizes.weight_bytes / sizes.num_parameters
    elif keeps_codes and sizes.is_quantised:
        share = GPU_CODES_SHARE if request.on_gpu else CODES_SHARE
        per_weight = share * sizes.weight_bytes / sizes.num_parameters
    weights = sizes.weight_bytes if per_weight is None else int(sizes.num_parameters * per_weight)
    floats = None if request.on_gpu else engine.cpu_number_bytes
    own = {"f16": floats, "q8": engine.q8_number_bytes}.get(need.kv)
    per_number = own or KV_BYTES[need.kv]
    cached = kv_bytes(sizes, need.context, per_number, engine.kv_policy)
    vocab_size = sizes.vocab_size or UNKNOWN_VOCAB
    buffers = engine.prompt_rows * _hidden(sizes) * BUFFERED_BYTES + engine.logit_rows * vocab_size * 4
    kept = f"{need.context:,} tokens, {need.kv}: {_shape(sizes, engine)}"
    stored = AS_STORED if per_weight is None else f"{per_weight:.2g} bytes each"
    return [
        MemoryItem(f"{who} weights", weights, stored, where, of_draft),
        MemoryItem(f"{who} KV", cached, kept, where, of_draft),
        MemoryItem(f"{who} buffers", buffers, f"logits and activations of {engine.prompt_rows} rows, typical",
             "one" if of_draft else "each", of_draft),
    ]  # fmt: skip


def _shape(sizes: Sizes, engine: EngineMemory) -> str:
    """What the layers keep, in words."""
    if not sizes.kv_layers:
        text = f"2 x {sizes.num_layers} layers x {sizes.num_kv_heads} heads x {sizes.head_dim}"
    else:
        text = " + ".join(_group(group.num_layers, group.numbers, group.window if engine.keeps_windows else 0)
                          for group in sizes.kv_layers)  # fmt: skip
    return f"{text}, at most" if sizes.kv_is_bound else text


def _group(num_layers: int, numbers: int, window: int) -> str:
    if not numbers:
        return f"{num_layers} layers without KV"
    return f"{num_layers} layers x {numbers:,} numbers{f' in a window of {window:,}' if window else ''}"


def _hidden(sizes: Sizes) -> int:
    """The hidden size of the model; a layer has about 12 times its square in weights."""
    return sizes.hidden_size or math.isqrt(sizes.num_parameters // (12 * max(sizes.num_layers, 1)))


def memory_notes(request: MemoryRequest) -> list[str]:
    engine, notes, gpus, title = request.engine, [], request.room.gpus, request.user.title
    if request.need.kv not in engine.kv_types:
        notes.append(f"{title} does not support a {request.need.kv} KV cache; it supports {', '.join(engine.kv_types)}")
    if engine.split == "none" and len(gpus) > 1:
        notes.append(f"{title} uses one GPU: the plan uses the largest")
    if engine.split == "tensor" and len(set(gpus)) > 1:
        notes.append(f"{title} puts equal shares on all GPUs: the smallest one sets the limit")
    if engine.split == "tensor" and gpus and request.target.num_kv_heads % request.sharing:
        notes.append(f"{request.target.num_kv_heads} KV heads can't be split evenly over {request.sharing} GPUs")
    if request.nodes > 1:
        notes.append(
            f"each machine runs a part of the layers, split over its {request.sharing} GPUs: slipstream launch vllm "
            f"--tensor-parallel {request.sharing} --pipeline-parallel {request.nodes} --nodes {request.nodes}"
        )
    if request.need.is_assumed:
        notes.append(f"a context of {request.need.context:,} tokens is assumed; set yours with --context")
    return [*notes, *_model_notes(request)]


def _model_notes(request: MemoryRequest) -> list[str]:
    notes, context = [], request.need.context
    for sizes in filter(None, (request.target, request.draft)):
        if 0 < sizes.context_length < context:
            notes.append(f"the context of {sizes.name} is {sizes.context_length:,} tokens; the plan has {context:,}")
        if sizes.kv_is_bound:
            notes.append(
                f"the files of {sizes.name} do not say which layers have a window or no attention: its KV cache is an "
                "upper bound"
            )
        if not request.engine.keeps_windows and any(group.window for group in sizes.kv_layers):
            notes.append(
                f"{sizes.name} has sliding windows, but {request.user.title} keeps the whole context in every layer"
            )
    if not request.target.vocab_size:
        notes.append(f"the vocabulary size is unknown; the logits are planned for {UNKNOWN_VOCAB:,} tokens")
    return notes
