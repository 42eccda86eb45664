"""plan: does it fit, and how is it split? Memory for a target and a draft on given GPUs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from slipstream.catalogue.stated_sizes import Stated, sizes_from
from slipstream.engines import find_folder
from slipstream.errors import UsageError
from slipstream.findings import Finding
from slipstream.model_files.local_models import local_place
from slipstream.model_files.model_facts import describe
from slipstream.model_files.weights import refuse_incomplete
from slipstream.predict.machine import inspect
from slipstream.predict.memory import GIB, GpuMemoryPlan, check
from slipstream.predict.memory import plan as plan_memory
from slipstream.predict.speed import KV_BYTES, Sizes
from slipstream.tasks.options import PlanOptions, parse_numbers


@dataclass(frozen=True, slots=True)
class PlanResult:
    memory: GpuMemoryPlan
    target: Sizes
    draft: Sizes | None
    notes: list[str]  # where figures come from

    @property
    def findings(self) -> list[Finding]:
        return check(self.memory)

    @property
    def fits(self) -> bool:
        return not any(finding.severity == "blocks" for finding in self.findings)

    def __repr__(self) -> str:
        draft = f" with {self.draft.name}" if self.draft else ""
        return f"<PlanResult {self.target.name}{draft}: {'fits' if self.fits else 'does not fit'}>"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self.memory) | {
            "schema": "slipstream.plan/1",
            "target": asdict(self.target),
            "draft": asdict(self.draft) if self.draft else None,
            "total_bytes": self.memory.total_bytes,
            "gpus": [asdict(gpu) | {"used": gpu.used} for gpu in self.memory.gpus],
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
    gpus, where = _gpu_sizes(options.gpus)
    engine = find_folder(options.engine).facts
    made = plan_memory(target, draft, options.context, kv, gpus, engine, options.nodes)
    return PlanResult(made, target, draft, [*where, *notes, *more, *made.notes])


def _sizes(
    name: str, option: str, spec: str | None, weights_gb: float | None, *shape: Any
) -> tuple[Sizes | None, list[str]]:
    """The sizes of a model that is here, or as stated; None when neither was given."""
    if spec is not None and weights_gb is not None:
        raise UsageError(f"{option} and the size of its weights can't be used together; use one of them")
    if spec is not None:
        refuse_incomplete(local_place(spec).path)
        return Sizes.of(describe(spec)), []
    return sizes_from(Stated(weights_gb, *shape), name) if weights_gb is not None else (None, [])


def _gpu_sizes(text: str | None) -> tuple[list[int], list[str]]:
    """Bytes of each GPU, and a line that says where they are from."""
    if text is not None:
        sizes = [int(number * GIB) for number in parse_numbers(text, "--gpus")]
        if min(sizes) <= 0:
            raise UsageError(f"--gpus {text!r}; expected sizes above 0, for example 32,24")
        return sizes, []
    machine = inspect()
    if machine.gpus:
        return [gpu.memory_free for gpu in machine.gpus], [f"currently free on {gpu.name}" for gpu in machine.gpus]
    return [machine.memory_free], ["no GPU was found: the plan uses the free main memory"]
