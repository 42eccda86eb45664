"""Forecast: what a target and a draft need and how fast they are on a machine, with an engine.

The doctor, `pairs` and `plan` all print what this one function returns.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.findings import Finding, blocks, rule
from slipstream.predict.gpus import UNKNOWN_BANDWIDTH
from slipstream.predict.machine import Machine
from slipstream.predict.memory import MemoryRoom, MemoryUser, Need
from slipstream.predict.placement import DeviceShare, GpuShare, MemoryPlacement, check, plan
from slipstream.predict.sizes import Sizes
from slipstream.predict.speed import (
    FLOPS_PER_BYTE,
    FLOPS_PER_CORE,
    DeviceSpeed,
    PairKind,
    PlacedModel,
    Prediction,
    predict,
)

NEEDS_GPU = rule(
    "fit-needs-gpu", "blocks", "The engine does not run without a GPU",
    "{engine} runs on GPUs of NVIDIA or AMD only.",
    "Use a machine with a GPU, or an engine that runs on the CPU: llama.cpp, Slipstream.",
)  # fmt: skip
ASSUMED = rule(
    "fit-assumed", "note", "Figures that were assumed, not given or measured",
    "The prediction is only as good as these figures.",
    "Give the context with --context. Measure the rest: slipstream bench.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Forecast:
    """`prediction` None: there is no draft, or the models can't run here."""

    memory: MemoryPlacement
    target: PlacedModel
    draft: PlacedModel | None
    prediction: Prediction | None
    findings: list[Finding]  # of memory
    assumptions: list[str]  # what the prediction takes for granted

    @property
    def is_refused(self) -> bool:
        return blocks(self.findings)


def forecast(
    machine: Machine, target: Sizes, draft: Sizes | None, engine: MemoryUser, need: Need, translated: bool = False
) -> Forecast:
    """Memory and speed of a target, alone or with a draft. `translated`: the two have different vocabularies."""
    made = plan_on(machine, target, draft, engine, need)
    findings = check(made)
    if engine.memory.needs_gpu and not made.gpus:
        findings = [NEEDS_GPU.finding(f"no GPU that it can use; {machine.processor}", engine=engine.title)]
    ours = _placed(machine, made, target, "target")
    theirs = _placed(machine, made, draft, "draft") if draft else None
    prediction = None
    if draft and theirs and not blocks(findings):
        prediction = predict(ours, theirs, None, pair_kind(target, draft, translated), need.batch)
    return Forecast(made, ours, theirs, prediction, findings, _assumptions(machine, made, prediction))


def plan_on(machine: Machine, target: Sizes, draft: Sizes | None, engine: MemoryUser, need: Need) -> MemoryPlacement:
    """The memory plan on a machine: on its GPUs, else in main memory; both where the engine can."""
    room = MemoryRoom.of(machine, engine.memory.for_model(target, machine))
    return plan(target, draft, need, room, engine)


def pair_kind(target: Sizes, draft: Sizes, translated: bool) -> PairKind:
    """How alike two models are, which decides how often a drafted token is accepted."""
    if translated:
        return "translated"
    return "same family" if target.architecture == draft.architecture else "same vocabulary"


def _placed(machine: Machine, made: MemoryPlacement, sizes: Sizes, who: str) -> PlacedModel:
    held = [(share, share.draft_bytes if who == "draft" else share.target_bytes) for share in made.devices]
    speeds = [(_device(machine, share), num_bytes) for share, num_bytes in held if num_bytes]
    return PlacedModel(made.held(f"{who} weights"), sizes.num_parameters, _together(speeds, made.split == "tensor"))


def _device(machine: Machine, share: DeviceShare) -> DeviceSpeed:
    if not isinstance(share, GpuShare):
        return DeviceSpeed(machine.cpu_read_bandwidth, machine.cores * FLOPS_PER_CORE)
    bandwidth = machine.gpus[share.index].read_bandwidth
    return DeviceSpeed(bandwidth, bandwidth * FLOPS_PER_BYTE)


def _together(speeds: list[tuple[DeviceSpeed, int]], at_once: bool) -> DeviceSpeed:
    """Devices as one. They work one after the other, or with tensor parallelism at once: then the slowest decides."""
    total, join = sum(num_bytes for _, num_bytes in speeds), max if at_once else sum
    reading = join(num_bytes / device.bandwidth for device, num_bytes in speeds)
    computing = join(num_bytes / device.flops for device, num_bytes in speeds)
    return DeviceSpeed(total / reading, total / computing)


def _assumptions(machine: Machine, made: MemoryPlacement, prediction: Prediction | None) -> list[str]:
    """In words, for the reader."""
    found = [f"a context of {made.context:,} tokens"] if made.is_assumed else []
    unknown = {machine.gpus[share.index].name for share in made.gpus if machine.gpus[share.index].bandwidth is None}
    found += [f"{UNKNOWN_BANDWIDTH / 1e9:.0f} GB/s for {name}, which is not in the table" for name in sorted(unknown)]
    if prediction and prediction.acceptance_source == "prior":
        found.append(f"{prediction.acceptance:.0%} of drafted tokens accepted, from the sizes of the two models")
    return found
