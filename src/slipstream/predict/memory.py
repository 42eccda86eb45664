"""Memory plan: the memory of target and draft on given devices line by line, their split, and the longest context.

The only place where memory is counted: the doctor, `pairs`, `plan` and loading all call `plan` and `check`.

Sizes are bytes; a GB is 10^9 bytes, and a card sold as 24 GB has 24 GiB (25.8 GB). Weights count as held, and the KV
cache as the engine keeps it. Buffers, CUDA graphs and the engine's own memory are typical values, marked as such.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from slipstream.errors import UsageError
from slipstream.findings import Finding, rule
from slipstream.predict.gpus import Vendor
from slipstream.predict.machine import Machine
from slipstream.predict.sizes import KV_BYTES, KvPolicy, KvType, Sizes, kv_bytes

GIB = 1 << 30
MB = 1_000_000
CONTEXT_STEP = 256
ASSUMED_CONTEXT = 8192  # tokens, where none was given: a chat or a file of code
UNKNOWN_CONTEXT = 1 << 20
MAX_CONTEXT = 1 << 30  # no model has such a context: a larger number is a mistake
UNKNOWN_VOCAB = 128_256
BUFFERED_BYTES = 24  # bytes per number of a row's hidden state: several copies, the largest a few times as wide
TIGHT_SHARE = 0.05  # share of a device that should stay free; less is a tight fit

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
class DeviceShare:
    """What one GPU holds, or main memory."""

    capacity: int
    target_bytes: int
    draft_bytes: int
    overhead_bytes: int
    num_layers: int  # layers of the target; with tensor parallelism, a share of all layers
    index: int = 0  # of the GPU; -1: main memory

    @property
    def used(self) -> int:
        return self.target_bytes + self.draft_bytes + self.overhead_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlacement:
    engine: str
    context: int
    kv: KvType
    parts: tuple[MemoryItem, ...]
    gpus: tuple[DeviceShare, ...]
    fits: bool
    max_context: int  # 0: not even an empty context fits
    max_context_without_draft: int
    notes: tuple[str, ...] = field(default=())
    usable: float = 1.0  # share of a GPU that the engine uses
    nodes: int = 1  # machines; `gpus` has the GPUs of the first, then those of the second, and so on
    main: DeviceShare | None = None  # what is in main memory; None: nothing
    is_assumed: bool = False  # the context was not given
    split: Split = "layers"

    @property
    def gpus_each(self) -> int:
        """GPUs per machine."""
        return len(self.gpus) // self.nodes

    @property
    def devices(self) -> tuple[DeviceShare, ...]:
        return self.gpus if self.main is None else (*self.gpus, self.main)

    @property
    def total_bytes(self) -> int:
        return sum(share.used for share in self.devices)

    @property
    def is_refused(self) -> bool:
        """It can't run. A context that was only assumed is no reason: a shorter one would do."""
        return not self.fits and not (self.is_assumed and self.max_context)

    @property
    def expands(self) -> str:
        """How weights are held that are not kept as stored; empty if they are."""
        why = self.parts[0].why
        return "" if why == AS_STORED else why

    def held(self, label: str) -> int:
        """Bytes of the line with this label."""
        return next((part.num_bytes for part in self.parts if part.label == label), 0)


DOES_NOT_FIT = rule(
    "fit-memory", "blocks", "The models do not fit in memory",
    "Weights, KV cache, buffers and the engine itself need more memory than there is. {meaning}",
    "{fix}",
)  # fmt: skip
SHORT = rule(
    "fit-memory-context", "slows", "The models fit only with a short context",
    "The context was not given. With the assumed {context:,} tokens the models do not fit; with {limit:,} they do.",
    "Use a context of {limit:,} or less, or a smaller KV type, or a smaller model. To check another: --context N.",
)  # fmt: skip
PARTLY = rule(
    "fit-memory-offload", "slows", "A part of the layers has to stay in main memory",
    "{layers} of {all_layers} layers do not fit on the GPU. They run on the CPU, which sets the speed of the whole "
    "model.",
    "Use a smaller quantisation or a shorter context. To run it like this, llama.cpp: -ngl {on_gpu}.",
)  # fmt: skip
TIGHT = rule(
    "fit-memory-tight", "note", "The models fit, but with little free memory",
    "Less than {share:.0%} of the memory of a device stays free; buffers and other programs can vary by that much.",
    "If loading fails, use a shorter context or a smaller KV type.",
)  # fmt: skip
FAILS_ON_GPU = "The engine fails while loading."
FAILS_IN_MAIN = (
    "The system would swap, or stop programs. llama.cpp, which maps the file, would read the missing part from disk "
    "for every token: seconds per token."
)


def plan(
    target: Sizes, draft: Sizes | None, need: Need, room: MemoryRoom, engine: MemoryUser, nodes: int = 1
) -> MemoryPlacement:
    """The plan for devices with this room, in each of `nodes` equal machines.

    Raises UsageError for no device, a context below 1, or several machines if the engine supports one.
    """
    sizes = room.gpus or (room.main,)
    if min(sizes) <= 0 or need.context < 1:
        raise UsageError(f"a plan needs memory of more than 0 bytes and a context of 1 or more; got {sizes}, "
                         f"{need.context}")  # fmt: skip
    memory = engine.memory.for_model(target, room.machine)
    if nodes > 1 and memory.split != "tensor":
        raise UsageError(f"{engine.title} runs on one machine only: remove --nodes")
    request = _Request(target, draft, need, replace(room, gpus=room.gpus * nodes), engine, memory, nodes)
    shares = _place(request)
    main = next((share for share in shares if share.index < 0), None)
    return MemoryPlacement(
        engine=engine.title,
        context=need.context,
        kv=need.kv,
        parts=tuple(_parts(request)),
        gpus=tuple(share for share in shares if share.index >= 0),
        fits=_fits(shares, memory),
        usable=memory.usable,
        max_context=_longest(request),
        max_context_without_draft=_longest(replace(request, draft=None)),
        notes=tuple(_notes(request)),
        nodes=nodes,
        main=main,
        is_assumed=need.is_assumed,
        split=memory.split,
    )


def check(made: MemoryPlacement) -> list[Finding]:
    """The plan as findings: it does not fit, only in part or with a short context, or only just."""
    context = f"{made.context:,} tokens{' (assumed)' if made.is_assumed else ''}"
    evidence = f"{_gb(made.total_bytes)} needed at {context}, KV {made.kv}; {_sizes_of(made)}"
    if made.is_refused:
        meaning = FAILS_ON_GPU if made.main is None else FAILS_IN_MAIN
        return [DOES_NOT_FIT.finding(evidence, meaning=meaning, fix=advice(made))]
    if not made.fits:
        return [SHORT.finding(evidence, context=made.context, limit=made.max_context)]
    if made.main and made.gpus:
        on_gpu = sum(share.num_layers for share in made.gpus)
        layers = made.main.num_layers
        return [PARTLY.finding(evidence, layers=layers, all_layers=on_gpu + layers, on_gpu=on_gpu)]
    free = [(share.capacity * _usable(share, made.usable) - share.used) / share.capacity for share in made.devices]
    return [TIGHT.finding(evidence, share=TIGHT_SHARE)] if min(free) < TIGHT_SHARE else []


def advice(made: MemoryPlacement) -> str:
    """How to make it fit, in one or two sentences."""
    if made.max_context:
        return f"Use a context of {made.max_context:,} or less, or a smaller KV type."
    if made.max_context_without_draft:
        return (
            f"Run without the draft model: then a context of {made.max_context_without_draft:,} tokens fits. Or draft "
            "with n-grams."
        )
    if made.expands:
        return (
            f"{made.engine} holds the weights with {made.expands} here. Use a smaller model, or llama.cpp, which keeps "
            "them as stored (in Slipstream, for GGUF files: --backend llamacpp)."
        )
    more = "more GPU memory, or llama.cpp, which can keep a part of the layers in main memory"
    if made.main is not None:
        more = "a machine with more memory"
    return f"The weights alone do not fit. Use a smaller model, a smaller quantisation of it, or {more}."


# -- what to place ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Request:
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


def _parts(request: _Request) -> list[MemoryItem]:
    parts = _model_parts(request, request.target, of_draft=False)
    if request.draft:
        parts += _model_parts(request, request.draft, of_draft=True)
    engine, title = request.engine, request.user.title
    if not request.on_gpu:
        return [*parts, MemoryItem("engine", engine.in_main, f"{title} itself, typical", "each")]
    if engine.graphs:
        parts.append(MemoryItem("graphs", engine.graphs, f"typical of {title}, each GPU", "each"))
    return [
        *parts,
        MemoryItem("engine", engine.each_gpu, f"context and libraries of {title}, typical, each GPU", "each"),
    ]


def _model_parts(request: _Request, sizes: Sizes, *, of_draft: bool) -> list[MemoryItem]:
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


def _notes(request: _Request) -> list[str]:
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


def _model_notes(request: _Request) -> list[str]:
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


# -- placement --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bytes:
    """What has to be placed: the target and the draft, and what every device holds."""

    target: int
    draft: int
    overhead: int


def _place(request: _Request) -> tuple[DeviceShare, ...]:
    """The best placement, which may not fit."""
    parts, engine = _parts(request), request.engine
    needed = _Bytes(
        target=sum(part.num_bytes for part in parts if part.place != "each" and not part.of_draft),
        draft=sum(part.num_bytes for part in parts if part.of_draft),
        overhead=sum(part.num_bytes for part in parts if part.place == "each"),
    )
    layers = max(request.target.num_layers, 1)
    if not request.on_gpu:
        return (DeviceShare(request.room.main, needed.target, needed.draft, needed.overhead, layers, -1),)
    if engine.split == "tensor":
        return _by_tensors(request, needed)
    sizes = dict(enumerate(request.room.gpus))
    if engine.split == "none":
        largest = max(sizes, key=lambda index: sizes[index])
        sizes = {largest: sizes[largest]}
    placements = [_by_layers(request, sizes, at, needed, layers) for at in sizes]
    best = max(placements, key=lambda shares: min(_free(share, engine) for share in shares))
    if _fits(best, engine) or not (engine.offloads and request.room.main):
        return best
    return _offloaded(request, sizes, needed)


def _by_tensors(request: _Request, needed: _Bytes) -> tuple[DeviceShare, ...]:
    """Each machine has a part of the layers, and each of its GPUs a share of every one of them. The last machine
    drafts.
    """
    layers = _proportional(max(request.target.num_layers, 1), [1] * request.nodes)
    return tuple(
        DeviceShare(
            size,
            needed.target * layers[index // request.sharing] // sum(layers) // request.sharing,
            needed.draft // request.sharing if index // request.sharing == request.nodes - 1 else 0,
            needed.overhead,
            layers[index // request.sharing],
            index,
        )
        for index, size in enumerate(request.room.gpus)
    )


def _by_layers(
    request: _Request, sizes: dict[int, int], draft_at: int, needed: _Bytes, count: int
) -> tuple[DeviceShare, ...]:
    """`count` layers in proportion to the free memory of each GPU, and the whole draft on one of them."""
    drafts = {index: needed.draft if index == draft_at else 0 for index in sizes}
    rooms = [
        max(int(size * request.engine.usable) - needed.overhead - drafts[index], 0) for index, size in sizes.items()
    ]
    layers, all_layers = _proportional(count, rooms), max(request.target.num_layers, 1)
    return tuple(
        DeviceShare(size, needed.target * held // all_layers, drafts[index], needed.overhead, held, index)
        for (index, size), held in zip(sizes.items(), layers, strict=True)
    )


def _offloaded(request: _Request, sizes: dict[int, int], needed: _Bytes) -> tuple[DeviceShare, ...]:
    """The draft on a GPU where it fits, then as many layers as fit beside it; the rest in main memory."""
    all_layers = max(request.target.num_layers, 1)
    for count in range(all_layers - 1, -1, -1):
        for draft_at in (*sizes, -1):
            gpus = _by_layers(request, sizes, draft_at, needed, count)
            if _fits(gpus, request.engine):
                rest = all_layers - count
                draft = needed.draft if draft_at < 0 else 0
                held = needed.target * rest // all_layers
                main = DeviceShare(request.room.main, held, draft, request.engine.in_main, rest, -1)
                return (*gpus, main)
    return (DeviceShare(request.room.main, needed.target, needed.draft, request.engine.in_main, all_layers, -1),)


def _proportional(count: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers that add up to `count`, in proportion to the weights; the largest remainders are rounded up."""
    total = sum(weights)
    exact = [count * weight / total if total else count / len(weights) for weight in weights]
    shares = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for index in by_remainder[: count - sum(shares)]:
        shares[index] += 1
    return shares


def _usable(share: DeviceShare, of_gpu: float) -> float:
    return 1.0 if share.index < 0 else of_gpu


def _free(share: DeviceShare, engine: EngineMemory) -> float:
    return share.capacity * _usable(share, engine.usable) - share.used


def _fits(shares: Sequence[DeviceShare], engine: EngineMemory) -> bool:
    return all(_free(share, engine) >= 0 for share in shares)


def _longest(request: _Request) -> int:
    """The longest context that fits, in steps of 256, at most the target's own."""
    limit = request.target.context_length or UNKNOWN_CONTEXT

    def fits(context: int) -> bool:
        longer = replace(request, need=replace(request.need, context=context))
        return _fits(_place(longer), request.engine)

    if fits(limit):
        return limit
    steps = range(1, limit // CONTEXT_STEP + 1)
    return bisect_left(steps, True, key=lambda step: not fits(step * CONTEXT_STEP)) * CONTEXT_STEP


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"


def _sizes_of(made: MemoryPlacement) -> str:
    texts = [" + ".join(_gb(gpu.capacity) for gpu in made.gpus)] if made.gpus else []
    if made.main:
        texts.append(f"{_gb(made.main.capacity)} of main memory free")
    return ", ".join(texts)
