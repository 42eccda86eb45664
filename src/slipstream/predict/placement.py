"""The memory plan: target and draft on GPUs and in main memory, whether they fit, and up to which context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from slipstream.errors import UsageError
from slipstream.findings import Finding, rule
from slipstream.predict.memory import (
    AS_STORED,
    MemoryItem,
    MemoryRequest,
    MemoryRoom,
    MemoryUser,
    Need,
    Split,
    memory_notes,
    memory_parts,
)
from slipstream.predict.sizes import KvType, Sizes

CONTEXT_STEP = 256
UNKNOWN_CONTEXT = 1 << 20
TIGHT_SHARE = 0.05  # share of a device that should stay free; less is a tight fit


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What main memory holds, or a GPU."""

    capacity: int
    usable_bytes: int  # of its capacity, by this engine
    target_bytes: int
    draft_bytes: int
    overhead_bytes: int
    num_layers: int  # layers of the target; with tensor parallelism, a share of all layers

    @property
    def used(self) -> int:
        return self.target_bytes + self.draft_bytes + self.overhead_bytes

    @property
    def free(self) -> int:
        """Negative where it does not fit."""
        return self.usable_bytes - self.used


@dataclass(frozen=True, slots=True)
class GpuShare(DeviceShare):
    index: int  # of the GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    gpus: tuple[GpuShare, ...]
    main: DeviceShare | None = None  # what is in main memory; None: nothing

    @property
    def devices(self) -> tuple[DeviceShare, ...]:
        return self.gpus if self.main is None else (*self.gpus, self.main)

    @property
    def fits(self) -> bool:
        return all(share.free >= 0 for share in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlacement(Placement):
    engine: str
    context: int
    kv: KvType
    parts: tuple[MemoryItem, ...]
    max_context: int  # 0: not even an empty context fits
    max_context_without_draft: int
    notes: tuple[str, ...] = field(default=())
    nodes: int = 1  # machines; `gpus` has the GPUs of the first, then those of the second, and so on
    is_assumed: bool = False  # the context was not given
    split: Split = "layers"

    @property
    def gpus_each(self) -> int:
        """GPUs per machine."""
        return len(self.gpus) // self.nodes

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
    request = MemoryRequest(target, draft, need, replace(room, gpus=room.gpus * nodes), engine, memory, nodes)
    placed = _Placer(request).best()
    return MemoryPlacement(
        engine=engine.title,
        context=need.context,
        kv=need.kv,
        parts=tuple(memory_parts(request)),
        gpus=placed.gpus,
        main=placed.main,
        max_context=_longest(request),
        max_context_without_draft=_longest(replace(request, draft=None)),
        notes=tuple(memory_notes(request)),
        nodes=nodes,
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
    is_tight = any(share.free < TIGHT_SHARE * share.capacity for share in made.devices)
    return [TIGHT.finding(evidence, share=TIGHT_SHARE)] if is_tight else []


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


def _longest(request: MemoryRequest) -> int:
    """The longest context that fits, in steps of 256, at most the target's own."""
    limit = request.target.context_length or UNKNOWN_CONTEXT

    def fits(context: int) -> bool:
        return _Placer(replace(request, need=replace(request.need, context=context))).best().fits

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


# -- over devices -----------------------------------------------------------------------------------------------------


class _Placer:
    """Places a target and a draft, as bytes. What every device holds is the overhead."""

    def __init__(self, request: MemoryRequest) -> None:
        parts = memory_parts(request)
        self._target = sum(part.num_bytes for part in parts if part.place != "each" and not part.of_draft)
        self._draft = sum(part.num_bytes for part in parts if part.of_draft)
        self._overhead = sum(part.num_bytes for part in parts if part.place == "each")
        self._num_layers = max(request.target.num_layers, 1)
        self._room, self._engine, self._nodes = request.room, request.engine, request.nodes

    def best(self) -> Placement:
        """The best placement, which may not fit."""
        if not self._room.gpus:
            return Placement(gpus=(), main=self._main(self._target, self._draft, self._overhead, self._num_layers))
        if self._engine.split == "tensor":
            return Placement(gpus=tuple(self._by_tensors()))
        gpus = list(range(len(self._room.gpus)))
        if self._engine.split == "none":
            gpus = [max(gpus, key=lambda index: self._room.gpus[index])]
        placements = [Placement(gpus=self._by_layers(gpus, at, self._num_layers)) for at in gpus]
        best = max(placements, key=lambda placed: min(share.free for share in placed.gpus))
        return best if best.fits or not (self._engine.offloads and self._room.main) else self._offloaded(gpus)

    def _by_tensors(self) -> Iterator[GpuShare]:
        """Each machine has a part of the layers, and each of its GPUs a share of every one of them. The last machine
        drafts.
        """
        layers, sharing = _proportional(self._num_layers, [1] * self._nodes), len(self._room.gpus) // self._nodes
        for index in range(len(self._room.gpus)):
            held, drafts = layers[index // sharing], index // sharing == self._nodes - 1
            target = self._target * held // self._num_layers // sharing
            yield self._gpu(index, target, self._draft // sharing if drafts else 0, held)

    def _by_layers(self, gpus: Sequence[int], draft_at: int | None, count: int) -> tuple[GpuShare, ...]:
        """`count` layers in proportion to the free memory of each GPU, and the whole draft on one of them."""
        empty = [self._gpu(index, 0, self._draft if index == draft_at else 0, 0) for index in gpus]
        layers = _proportional(count, [max(share.free, 0) for share in empty])
        return tuple(
            replace(share, target_bytes=self._target * held // self._num_layers, num_layers=held)
            for share, held in zip(empty, layers, strict=True)
        )

    def _offloaded(self, gpus: Sequence[int]) -> Placement:
        """The draft on a GPU where it fits, then as many layers as fit beside it; the rest in main memory."""
        for count in range(self._num_layers - 1, -1, -1):
            for draft_at in (*gpus, None):
                placed = Placement(gpus=self._by_layers(gpus, draft_at, count))
                if placed.fits:
                    rest, draft = self._num_layers - count, self._draft if draft_at is None else 0
                    held = self._target * rest // self._num_layers
                    return replace(placed, main=self._main(held, draft, self._engine.in_main, rest))
        return Placement(gpus=(), main=self._main(self._target, self._draft, self._engine.in_main, self._num_layers))

    def _gpu(self, index: int, target: int, draft: int, num_layers: int) -> GpuShare:
        size = self._room.gpus[index]
        return GpuShare(size, int(size * self._engine.usable), target, draft, self._overhead, num_layers, index)

    def _main(self, target: int, draft: int, overhead: int, num_layers: int) -> DeviceShare:
        return DeviceShare(self._room.main, self._room.main, target, draft, overhead, num_layers)


def _proportional(count: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers that add up to `count`, in proportion to the weights; the largest remainders are rounded up."""
    total = sum(weights)
    exact = [count * weight / total if total else count / len(weights) for weight in weights]
    shares = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for index in by_remainder[: count - sum(shares)]:
        shares[index] += 1
    return shares
