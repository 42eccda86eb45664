"""Memory plan: the memory of target and draft on given GPUs line by line, how to split them, and the longest context.

Sizes are bytes; a GB is 10^9 bytes, and a card sold as 24 GB has 24 GiB (25.8 GB). Weights count as stored; the KV
cache is exact. Buffers, CUDA graphs and the engine's own memory are typical values, marked as such.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from slipstream.errors import UsageError
from slipstream.findings import Finding, rule
from slipstream.predict.speed import KvType, Sizes, kv_bytes_per_token

GIB = 1 << 30
MB = 1_000_000
CONTEXT_STEP = 256
UNKNOWN_CONTEXT = 1 << 20
UNKNOWN_VOCAB = 128_256
BUFFERED_BYTES = 24  # bytes per number of a row's hidden state: several copies, the largest a few times as wide
TIGHT_SHARE = 0.05  # share of a GPU that should stay free; less is a tight fit

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
    weight_bytes: float | None = None  # bytes per weight in memory, if not as stored


class MemoryUser(Protocol):
    """An engine: its name in texts, and how it uses memory."""

    @property
    def title(self) -> str: ...

    @property
    def memory(self) -> EngineMemory: ...


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """A line of the plan. `place`: split over all GPUs, on one of them, or on each of them."""

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
    num_layers: int  # layers of the target; with tensor parallelism, a share of all layers

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
    max_context: int  # 0: not even an empty context fits
    max_context_without_draft: int
    notes: tuple[str, ...] = field(default=())
    usable: float = 1.0  # share of a GPU that the engine uses
    nodes: int = 1  # machines; `gpus` has the GPUs of the first, then those of the second, and so on

    @property
    def gpus_each(self) -> int:
        """GPUs per machine."""
        return len(self.gpus) // self.nodes

    @property
    def total_bytes(self) -> int:
        return sum(gpu.used for gpu in self.gpus)


DOES_NOT_FIT = rule(
    "fit-memory", "blocks", "The models do not fit in memory",
    "Weights, KV cache, buffers and the engine itself need more memory than there is. The engine fails while loading, "
    "or runs some layers on the CPU, which is many times slower.",
    "{fix}",
)  # fmt: skip
TIGHT = rule(
    "fit-memory-tight", "note", "The models fit, but with little free memory",
    "Less than {share:.0%} of a GPU's memory stays free; buffers and other programs can vary by that much.",
    "If loading fails, use a shorter context or a smaller KV type.",
)  # fmt: skip


def plan(
    target: Sizes,
    draft: Sizes | None,
    context: int,
    kv: KvType,
    gpus: Sequence[int],
    engine: MemoryUser,
    nodes: int = 1,
) -> GpuMemoryPlan:
    """The plan for GPUs with these sizes in bytes, in each of `nodes` equal machines.

    Raises UsageError for no GPU, a context below 1, or several machines if the engine supports one.
    """
    if not gpus or min(gpus) <= 0 or context < 1:
        raise UsageError(f"a plan needs GPUs of more than 0 bytes and a context of 1 or more; got {gpus}, {context}")
    if nodes > 1 and engine.memory.split != "tensor":
        raise UsageError(f"{engine.title} runs on one machine only: remove --nodes")
    request = _Request(target, draft, context, kv, tuple(gpus) * nodes, engine, nodes)
    shares = _place(request)
    return GpuMemoryPlan(
        engine=engine.title,
        context=context,
        kv=kv,
        parts=tuple(_parts(request)),
        gpus=shares,
        fits=_fits(shares, engine.memory),
        usable=engine.memory.usable,
        max_context=_longest(request),
        max_context_without_draft=_longest(replace(request, draft=None)),
        notes=tuple(_notes(request)),
        nodes=nodes,
    )


def check(made: GpuMemoryPlan) -> list[Finding]:
    """The plan as findings: it does not fit, or only just."""
    free = [gpu.capacity * made.usable - gpu.used for gpu in made.gpus]
    evidence = f"{_gb(made.total_bytes)} needed at {made.context:,} tokens ({made.kv}); {_gpu_sizes(made)}"
    if not made.fits:
        return [DOES_NOT_FIT.finding(evidence, fix=advice(made))]
    if min(room / gpu.capacity for room, gpu in zip(free, made.gpus, strict=True)) < TIGHT_SHARE:
        return [TIGHT.finding(evidence, share=TIGHT_SHARE)]
    return []


def advice(made: GpuMemoryPlan) -> str:
    """How to make it fit, in one sentence."""
    if made.max_context:
        return f"Use a context of {made.max_context:,} or less, or a smaller KV type."
    if made.max_context_without_draft:
        return (
            f"Run without the draft model: then a context of {made.max_context_without_draft:,} tokens fits. Or draft "
            "with n-grams."
        )
    return "The weights alone do not fit. Use a smaller quantisation of the target, or more GPU memory."


# -- what to place ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Request:
    target: Sizes
    draft: Sizes | None
    context: int
    kv: KvType
    gpus: tuple[int, ...]
    user: MemoryUser
    nodes: int = 1

    @property
    def engine(self) -> EngineMemory:
        return self.user.memory

    @property
    def sharing(self) -> int:
        """GPUs per machine, which share every layer of that machine."""
        return len(self.gpus) // self.nodes


def _parts(request: _Request) -> list[MemoryItem]:
    parts = _model_parts(request, request.target, of_draft=False)
    if request.draft:
        parts += _model_parts(request, request.draft, of_draft=True)
    engine = request.engine
    if engine.graphs:
        parts.append(MemoryItem("graphs", engine.graphs, f"typical of {request.user.title}, each GPU", "each"))
    return [
        *parts,
        MemoryItem(
            "engine", engine.each_gpu, f"context and libraries of {request.user.title}, typical, each GPU", "each"
        ),
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
    """The hidden size of the model; a layer has about 12 times its square in weights."""
    return sizes.hidden_size or math.isqrt(sizes.num_parameters // (12 * max(sizes.num_layers, 1)))


def _notes(request: _Request) -> list[str]:
    engine, notes = request.engine, []
    if request.kv not in engine.kv_types:
        notes.append(
            f"{request.user.title} does not support a {request.kv} KV cache; it supports {', '.join(engine.kv_types)}"
        )
    if engine.split == "none" and len(request.gpus) > 1:
        notes.append(f"{request.user.title} uses one GPU: the plan uses the largest")
    if engine.split == "tensor" and len(set(request.gpus)) > 1:
        notes.append(f"{request.user.title} puts equal shares on all GPUs: the smallest one sets the limit")
    if engine.split == "tensor" and request.target.num_kv_heads % request.sharing:
        notes.append(f"{request.target.num_kv_heads} KV heads can't be split evenly over {request.sharing} GPUs")
    if request.nodes > 1:
        notes.append(
            f"each machine runs a part of the layers, split over its {request.sharing} GPUs: slipstream launch vllm "
            f"--tensor-parallel {request.sharing} --pipeline-parallel {request.nodes} --nodes {request.nodes}"
        )
    for sizes in filter(None, (request.target, request.draft)):
        if 0 < sizes.context_length < request.context:
            notes.append(
                f"the context of {sizes.name} is {sizes.context_length:,} tokens; the plan has {request.context:,}"
            )
    if not request.target.vocab_size:
        notes.append(f"the vocabulary size is unknown; the logits are planned for {UNKNOWN_VOCAB:,} tokens")
    return notes


# -- placement --------------------------------------------------------------------------------------------------------


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
    """Each machine has a part of the layers, and each of its GPUs a share of every one of them. The last machine
    drafts.
    """
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
    """Layers in proportion to the free memory of each GPU, and the whole draft on one of them."""
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
    """The longest context that fits, in steps of 256, at most the target's own."""
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
