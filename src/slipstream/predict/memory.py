"""Memory plan: what a target and a draft take on given GPUs, line by line, how to split them, how long a context fits.

Sizes are bytes; a GB is 10^9 bytes, and a card sold as 24 GB has 24 GiB (25.8 GB). Weights count as stored, the KV
cache to the byte. Buffers, graphs and what an engine takes for itself are typical values, marked as such.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from slipstream.errors import UsageError
from slipstream.findings import Finding, rule
from slipstream.predict.speed import KvType, Sizes, kv_bytes_per_token

GIB = 1 << 30
CONTEXT_STEP = 256
UNKNOWN_CONTEXT = 1 << 20
UNKNOWN_VOCAB = 128_256
BUFFERED_BYTES = 24  # of each number of a row's hidden state: a handful of copies, the widest a few times as wide
TIGHT_SHARE = 0.05  # of a GPU left free: less than this is close

Split = Literal["layers", "tensor", "none"]


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What an engine adds. The bytes are estimates, not measured: hence "typical" in the lines of a plan."""

    name: str
    split: Split  # over several GPUs: whole layers, a share of every layer, or not at all
    each_gpu: int  # context, libraries, work space
    graphs: int  # captured graphs, on each GPU
    prompt_rows: int  # rows of a prompt in one forward
    logit_rows: int  # rows it reserves logits for
    usable: float = 1.0  # share of a GPU that it lets itself have
    kv_types: tuple[KvType, ...] = ("f16", "q8", "q4")
    weight_bytes: float | None = None  # of one weight in memory, where that is not as stored


_MB = 1_000_000
ENGINES = {
    engine.name: engine
    for engine in (
        EngineMemory("llama.cpp", "layers", 450 * _MB, 0, 512, 512),
        EngineMemory("ollama", "layers", 450 * _MB, 0, 512, 512),
        EngineMemory("exllama", "layers", 500 * _MB, 0, 2048, 32),
        EngineMemory("vllm", "tensor", 900 * _MB, 900 * _MB, 4096, 256, usable=0.9, kv_types=("f16", "q8")),
        EngineMemory("sglang", "tensor", 900 * _MB, 900 * _MB, 4096, 256, usable=0.88, kv_types=("f16", "q8")),
        EngineMemory("transformers", "layers", 600 * _MB, 0, 2048, 32),
        EngineMemory("slipstream", "none", 600 * _MB, 200 * _MB, 512, 32, kv_types=("f16",), weight_bytes=2.0),
    )
}
ALIASES = {"llama-server": "llama.cpp", "llama-cpp-python": "llama.cpp", "tabbyapi": "exllama", "exllamav2": "exllama",
           "exllamav3": "exllama"}  # fmt: skip
DEFAULT_ENGINE = "llama.cpp"


def engine_memory(name: str) -> EngineMemory:
    """An engine by its name. UsageError lists the known ones."""
    key = ALIASES.get(name.lower(), name.lower())
    if key not in ENGINES:
        raise UsageError(f"no memory figures for the engine {name!r}; there are {', '.join([*ENGINES, *ALIASES])}")
    return ENGINES[key]


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """A line of the plan. `place`: over all GPUs, on one of them, or on each anew."""

    label: str
    num_bytes: int
    why: str
    place: Literal["split", "one", "each"]
    of_draft: bool = False


@dataclass(frozen=True, slots=True)
class GpuShare:
    """What one GPU holds."""

    capacity: int
    target_bytes: int
    draft_bytes: int
    overhead_bytes: int
    num_layers: int  # of the target; with tensor parallelism, all of them in part

    @property
    def used(self) -> int:
        return self.target_bytes + self.draft_bytes + self.overhead_bytes


@dataclass(frozen=True, slots=True)
class GpuMemoryPlan:
    engine: str
    context: int
    kv: KvType
    parts: tuple[MemoryItem, ...]
    gpus: tuple[GpuShare, ...]
    fits: bool
    max_context: int  # 0: not even an empty one
    max_context_without_draft: int
    notes: tuple[str, ...] = field(default=())
    nodes: int = 1  # machines; `gpus` has those of the first, then those of the second, and so on

    @property
    def gpus_each(self) -> int:
        """GPUs of a machine."""
        return len(self.gpus) // self.nodes

    @property
    def total_bytes(self) -> int:
        return sum(gpu.used for gpu in self.gpus)


DOES_NOT_FIT = rule(
    "fit-memory", "blocks", "The models do not fit the memory",
    "Weights, KV cache, buffers and the engine itself need more than there is; the engine stops while loading, or "
    "leaves layers on the processor, which is many times slower.",
    "{fix}",
)  # fmt: skip
TIGHT = rule(
    "fit-memory-tight", "note", "The models fit with little to spare",
    "Less than {share:.0%} of a GPU stays free; buffers and other programs vary by as much.",
    "Take a shorter context or a smaller KV type if loading fails.",
)  # fmt: skip


def plan(
    target: Sizes,
    draft: Sizes | None,
    context: int,
    kv: KvType,
    gpus: Sequence[int],
    engine: str = DEFAULT_ENGINE,
    nodes: int = 1,
) -> GpuMemoryPlan:
    """The plan for GPUs of so many bytes each, in each of `nodes` machines that are alike.

    UsageError for no GPU, a context below 1, an unknown engine, or machines that the engine can't join.
    """
    memory = engine_memory(engine)
    if not gpus or min(gpus) <= 0 or context < 1:
        raise UsageError(f"a plan needs GPUs of more than 0 bytes and a context of 1 or more; got {gpus}, {context}")
    if nodes > 1 and memory.split != "tensor":
        joining = ", ".join(name for name, known in ENGINES.items() if known.split == "tensor")
        raise UsageError(f"{memory.name} runs on one machine; {joining} join several")
    request = _Request(target, draft, context, kv, tuple(gpus) * nodes, memory, nodes)
    shares = _place(request)
    return GpuMemoryPlan(
        engine=memory.name,
        context=context,
        kv=kv,
        parts=tuple(_parts(request)),
        gpus=shares,
        fits=_fits(shares, memory),
        max_context=_longest(request),
        max_context_without_draft=_longest(replace(request, draft=None)),
        notes=tuple(_notes(request)),
        nodes=nodes,
    )


def check(made: GpuMemoryPlan) -> list[Finding]:
    """The plan as findings: it does not fit, or hardly."""
    usable = engine_memory(made.engine).usable
    free = [gpu.capacity * usable - gpu.used for gpu in made.gpus]
    evidence = f"{_gb(made.total_bytes)} needed at {made.context:,} tokens ({made.kv}); {_gpu_sizes(made)}"
    if not made.fits:
        return [DOES_NOT_FIT.finding(evidence, fix=advice(made))]
    if min(room / gpu.capacity for room, gpu in zip(free, made.gpus, strict=True)) < TIGHT_SHARE:
        return [TIGHT.finding(evidence, share=TIGHT_SHARE)]
    return []


def advice(made: GpuMemoryPlan) -> str:
    """What would make it fit, in a sentence."""
    if made.max_context:
        return f"Use a context of {made.max_context:,} or less, or a smaller KV type."
    if made.max_context_without_draft:
        return (
            f"Leave the draft out: then {made.max_context_without_draft:,} tokens of context fit. Or draft by n-gram."
        )
    return "Take a smaller quantisation of the target, or more GPU memory; the weights alone do not fit."


# -- what there is to place -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Request:
    target: Sizes
    draft: Sizes | None
    context: int
    kv: KvType
    gpus: tuple[int, ...]
    engine: EngineMemory
    nodes: int = 1

    @property
    def sharing(self) -> int:
        """GPUs of a machine, which share every layer that the machine has."""
        return len(self.gpus) // self.nodes


def _parts(request: _Request) -> list[MemoryItem]:
    parts = _model_parts(request, request.target, of_draft=False)
    if request.draft:
        parts += _model_parts(request, request.draft, of_draft=True)
    engine = request.engine
    if engine.graphs:
        parts.append(MemoryItem("graphs", engine.graphs, f"typical of {engine.name}, each GPU", "each"))
    return [
        *parts,
        MemoryItem("engine", engine.each_gpu, f"context and libraries of {engine.name}, typical, each GPU", "each"),
    ]


def _model_parts(request: _Request, sizes: Sizes, *, of_draft: bool) -> list[MemoryItem]:
    who = "draft" if of_draft else "target"
    engine = request.engine
    where: Literal["split", "one"] = "one" if of_draft and engine.split == "layers" else "split"
    per_weight = engine.weight_bytes
    weights = sizes.weight_bytes if per_weight is None else int(sizes.num_parameters * per_weight)
    cached = int(request.context * kv_bytes_per_token(sizes, request.kv))
    shape = f"{sizes.num_layers} layers x {sizes.num_kv_heads} heads x {sizes.head_dim}"
    vocab_size = sizes.vocab_size or UNKNOWN_VOCAB
    buffers = engine.prompt_rows * _hidden(sizes) * BUFFERED_BYTES + engine.logit_rows * vocab_size * 4
    stored = "as stored" if per_weight is None else f"{per_weight:g} bytes each"
    return [
        MemoryItem(f"{who} weights", weights, stored, where, of_draft),
        MemoryItem(f"{who} KV", cached, f"{request.context:,} tokens, {request.kv}: 2 x {shape}", where, of_draft),
        MemoryItem(f"{who} buffers", buffers, f"logits and activations of {engine.prompt_rows} rows, typical",
             "one" if of_draft else "each", of_draft),
    ]  # fmt: skip


def _hidden(sizes: Sizes) -> int:
    """The width of the model; a layer has about 12 times its square of weights."""
    return sizes.hidden_size or math.isqrt(sizes.num_parameters // (12 * max(sizes.num_layers, 1)))


def _notes(request: _Request) -> list[str]:
    engine, notes = request.engine, []
    if request.kv not in engine.kv_types:
        notes.append(f"{engine.name} has no {request.kv} KV cache; it has {', '.join(engine.kv_types)}")
    if engine.split == "none" and len(request.gpus) > 1:
        notes.append(f"{engine.name} uses one GPU: the largest counts")
    if engine.split == "tensor" and len(set(request.gpus)) > 1:
        notes.append(f"{engine.name} puts equal shares on all GPUs: the smallest one sets the limit")
    if engine.split == "tensor" and request.target.num_kv_heads % request.sharing:
        notes.append(f"{request.target.num_kv_heads} KV heads can't be shared evenly by {request.sharing} GPUs")
    if request.nodes > 1:
        notes.append(
            f"each machine has a part of the layers, shared by its {request.sharing} GPUs: "
            f"slipstream launch vllm --tensor-parallel {request.sharing} --pipeline-parallel {request.nodes} "
            f"--nodes {request.nodes}"
        )
    for sizes in filter(None, (request.target, request.draft)):
        if 0 < sizes.context_length < request.context:
            notes.append(f"{sizes.name} was made for {sizes.context_length:,} tokens, {request.context:,} are planned")
    if not request.target.vocab_size:
        notes.append(f"the logits are for {UNKNOWN_VOCAB:,} tokens, as the vocabulary is not known")
    return notes


# -- placing it -------------------------------------------------------------------------------------------------------


def _place(request: _Request) -> tuple[GpuShare, ...]:
    """The best placement, which may not fit."""
    parts = _parts(request)
    overhead = sum(part.num_bytes for part in parts if part.place == "each")
    target = sum(part.num_bytes for part in parts if part.place != "each" and not part.of_draft)
    draft = sum(part.num_bytes for part in parts if part.of_draft)
    if request.engine.split == "tensor":
        return _by_tensors(request, target, draft, overhead)
    gpus = (max(request.gpus),) if request.engine.split == "none" else request.gpus
    placements = [_by_layers(request, gpus, at, target, draft, overhead) for at in range(len(gpus))]
    return max(placements, key=lambda shares: min(_room(share, request.engine) for share in shares))


def _by_tensors(request: _Request, target: int, draft: int, overhead: int) -> tuple[GpuShare, ...]:
    """A machine has its part of the layers, and each of its GPUs a share of every one. The last machine drafts."""
    layers = _proportional(max(request.target.num_layers, 1), [1] * request.nodes)
    return tuple(
        GpuShare(
            size,
            target * layers[machine] // sum(layers) // request.sharing,
            draft // request.sharing if machine == request.nodes - 1 else 0,
            overhead,
            layers[machine],
        )
        for machine, size in ((index // request.sharing, size) for index, size in enumerate(request.gpus))
    )


def _by_layers(
    request: _Request, gpus: tuple[int, ...], draft_at: int, target: int, draft: int, overhead: int
) -> tuple[GpuShare, ...]:
    """Layers in proportion to what each GPU has left, the draft whole on one of them."""
    drafts = [draft if index == draft_at else 0 for index in range(len(gpus))]
    rooms = [
        max(int(size * request.engine.usable) - overhead - held, 0) for size, held in zip(gpus, drafts, strict=True)
    ]
    layers = _proportional(max(request.target.num_layers, 1), rooms)
    num_layers = sum(layers)
    return tuple(
        GpuShare(size, target * count // num_layers, held, overhead, count)
        for size, held, count in zip(gpus, drafts, layers, strict=True)
    )


def _proportional(count: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers that add up to `count`, in proportion to the weights; the largest remainders are rounded up."""
    total = sum(weights)
    exact = [count * weight / total if total else count / len(weights) for weight in weights]
    shares = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for index in by_remainder[: count - sum(shares)]:
        shares[index] += 1
    return shares


def _room(share: GpuShare, engine: EngineMemory) -> float:
    return share.capacity * engine.usable - share.used


def _fits(shares: Sequence[GpuShare], engine: EngineMemory) -> bool:
    return all(_room(share, engine) >= 0 for share in shares)


def _longest(request: _Request) -> int:
    """The longest context that fits, in steps of 256, at most what the target was made for."""
    limit = request.target.context_length or UNKNOWN_CONTEXT

    def fits(context: int) -> bool:
        return _fits(_place(replace(request, context=context)), request.engine)

    if fits(limit):
        return limit
    low, high = 0, limit // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * CONTEXT_STEP) else (low, middle - 1)
    return low * CONTEXT_STEP


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"


def _gpu_sizes(made: GpuMemoryPlan) -> str:
    return " + ".join(_gb(gpu.capacity) for gpu in made.gpus)
