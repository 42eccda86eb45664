"""plan: does it fit, and how is it split? Memory for a target and a draft on given GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slipstream.catalogue.stated_sizes import Stated, sizes_from
from slipstream.diagnosis import machine_checks
from slipstream.diagnosis.support_checks import check_models, own_packages, usual_engine
from slipstream.engines import find_folder
from slipstream.engines.facts import EngineFacts
from slipstream.errors import UsageError
from slipstream.findings import Finding, blocking, blocks
from slipstream.model_files.model_facts import describe
from slipstream.model_files.weights import check_weights
from slipstream.predict.forecast import forecast
from slipstream.predict.gpus import Gpu
from slipstream.predict.machine import Machine, inspect
from slipstream.predict.memory import GIB, MemoryRoom, Need
from slipstream.predict.placement import MemoryPlacement, check
from slipstream.predict.placement import plan as plan_memory
from slipstream.predict.sizes import KV_BYTES, Sizes
from slipstream.predict.speed import Prediction
from slipstream.tasks.options import PlanOptions, parse_numbers
from slipstream.vocabularies.rules import TRANSLATE

MAX_GPU_GIB = 100_000  # a larger number is a mistake


@dataclass(frozen=True, slots=True)
class PlanResult:
    memory: MemoryPlacement
    target: Sizes
    draft: Sizes | None
    notes: list[str]  # where figures come from
    findings: list[Finding]
    prediction: Prediction | None = None  # None: no draft, it does not fit, or the GPUs are only stated

    @property
    def fits(self) -> bool:
        return not blocks(self.findings)

    def __repr__(self) -> str:
        draft = f" with {self.draft.name}" if self.draft else ""
        return f"<PlanResult {self.target.name}{draft}: {'fits' if self.fits else 'does not fit'}>"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self.memory) | {
            "schema": "slipstream.plan/1",
            "target": asdict(self.target),
            "draft": asdict(self.draft) if self.draft else None,
            "fits": self.memory.fits,
            "total_bytes": self.memory.total_bytes,
            "gpus": [asdict(gpu) | {"used": gpu.used} for gpu in self.memory.gpus],
            "split": split_settings(self.memory),
            "prediction": asdict(self.prediction) if self.prediction else None,
            "notes": self.notes,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def plan(options: PlanOptions) -> PlanResult:
    """What fits, how to split it, the longest context.

    Weights count as stored and the KV cache to the byte; buffers and the engine's own share are typical values.
    Raises UsageError, ModelError.
    """
    kv = next((name for name in KV_BYTES if name == options.kv), None)
    if kv is None:
        raise UsageError(f"--kv {options.kv!r}; expected {', '.join(KV_BYTES)}")
    shape = (options.like, options.layers, options.kv_heads, options.head_dim)
    target, notes = _sizes("target", "--target", options.target, options.weights_gb, *shape)
    draft, more = _sizes("draft", "--draft", options.draft, options.draft_weights_gb, options.draft_like)
    if target is None:
        raise UsageError("name the target with --target, or set the size of its weights with --weights-gb")
    need = Need.of(target, options.context, kv)
    engine = find_folder(options.engine or usual_engine(target.format)).facts
    machine = None if options.gpus is not None or options.nodes > 1 else inspect()
    found = _check_files(options, engine, machine.gpus if machine else ())
    if machine is None:
        room = MemoryRoom(_stated_gpus(options.gpus))
        made = plan_memory(target, draft, need, room, engine, options.nodes)
        return PlanResult(made, target, draft, [*notes, *more, *made.notes], [*blocking(found), *check(made)])
    found += machine_checks.check(machine, engine, own_packages(machine, engine))
    is_translated = any(finding.id == TRANSLATE.id for finding in found)
    expected = forecast(machine, target, draft, engine, need, is_translated)
    made = expected.memory
    notes = [*_where(machine, made), *notes, *more, *made.notes]
    findings = [*blocking(found), *expected.findings]
    return PlanResult(made, target, draft, notes, findings, None if blocks(findings) else expected.prediction)


def _check_files(options: PlanOptions, engine: EngineFacts, gpus: Sequence[Gpu]) -> list[Finding]:
    """What the doctor finds in the models that are here. Broken files are not looked at further."""
    specs = [spec for spec in (options.target, options.draft) if spec]
    broken = [finding for spec in specs for finding in check_weights(spec)]
    return broken if blocks(broken) else [*broken, *check_models(options.target, options.draft, engine, gpus)]


def split_settings(made: MemoryPlacement) -> dict[str, str]:
    """How to tell engines the split over several GPUs; empty for one GPU, or where the engine splits by itself."""
    if made.split != "layers" or len(made.gpus) < 2:
        return {}
    gigabytes = [math.ceil((gpu.target_bytes + gpu.overhead_bytes) / GIB * 10) / 10 for gpu in made.gpus]
    layers = ",".join(str(gpu.num_layers) for gpu in made.gpus)
    return {"gpu_split": f"[{', '.join(f'{size:.1f}' for size in gigabytes)}]", "tensor_split": layers}


def _sizes(
    name: str, option: str, spec: str | None, weights_gb: float | None, *shape: Any
) -> tuple[Sizes | None, list[str]]:
    """The sizes of a model that is here, or as stated; None when neither was given."""
    if spec is not None and weights_gb is not None:
        raise UsageError(f"{option} and the size of its weights can't be used together; use one of them")
    if spec is not None:
        return Sizes.of(describe(spec)), []
    return sizes_from(Stated(weights_gb, *shape), name) if weights_gb is not None else (None, [])


def _stated_gpus(text: str | None) -> tuple[int, ...]:
    """Bytes of each GPU: those of `--gpus`, else those of this machine. Raises UsageError."""
    if text is None:
        gpus = inspect().gpus
        if not gpus:
            raise UsageError("--nodes needs GPUs, and this machine has none: state their sizes with --gpus")
        return tuple(gpu.memory_free for gpu in gpus)
    numbers = parse_numbers(text, "--gpus")
    if not all(0 < number <= MAX_GPU_GIB for number in numbers):
        raise UsageError(f"--gpus {text!r}; expected sizes in GB above 0 and up to {MAX_GPU_GIB:,}, for example 32,24")
    return tuple(int(number * GIB) for number in numbers)


def _where(machine: Machine, made: MemoryPlacement) -> list[str]:
    """Lines that say where the sizes of the devices are from."""
    used = [f"currently free on {machine.gpus[gpu.index].name}" for gpu in made.gpus]
    if not machine.gpus:
        return ["no GPU was found: the plan uses the free main memory"]
    return used or ["the engine can't use the GPU here: the plan uses the free main memory"]
