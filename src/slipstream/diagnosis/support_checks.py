"""Whether an engine on a machine supports a model and a pair: the doctor and `pairs` ask the same questions here."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.engines import folders
from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding, rule
from slipstream.model_files.model_facts import ModelFacts, describe
from slipstream.model_files.quantisation import Role, check_capability, label
from slipstream.predict.gpus import Gpu
from slipstream.predict.machine import Machine
from slipstream.predict.packages import Packages
from slipstream.vocabularies import checks as vocabulary

OWN = "slipstream"
METHOD = rule(
    "weights-quantisation",
    "blocks",
    "The engine does not support this quantisation",
    "{engine} can't load {method} weights as a {role}. It supports {taken}.",
    "For {engine} use {instead}, or run this model with {others}.",
)
LIMITED = rule(
    "weights-quantisation-limited",
    "slows",
    "The engine supports this quantisation only in part",
    "{note}.",
    "It may work unchanged; {instead} works best with {engine}.",
)


def check_support(facts: ModelFacts, role: Role, engine: EngineFacts, gpus: Sequence[Gpu]) -> list[Finding]:
    """Whether the engine takes these weights in this role, and the GPUs have what they need."""
    found = check_quantisation(facts, engine, role)
    for gpu in () if engine.has_own_kernels else gpus:
        if gpu.compute_capability:
            major, minor = divmod(round(gpu.compute_capability * 10), 10)
            found += check_capability(facts, (major, minor))
    return found


def check_quantisation(facts: ModelFacts, engine: EngineFacts, role: Role) -> list[Finding]:
    """Whether an engine supports the model's quantisation. Empty if it does, or if the method is unknown."""
    method = facts.quantisation
    if method is None:
        return []
    seen, limit = f"{role} {facts.name}: {label(facts)}", engine.quantisations.get(method)
    if limit:
        note = limit.format(format=method.lower())
        return [LIMITED.finding(seen, note=note, instead=engine.best_weights, engine=engine.title)]
    if limit is not None:
        return []
    others = [folder.facts.title for folder in folders() if method in folder.facts.quantisations]
    return [
        METHOD.finding(
            seen,
            engine=engine.title,
            method=_shown(method),
            role=role,
            taken=", ".join(map(_shown, engine.quantisations)),
            instead=engine.best_weights,
            others=" or ".join(others) or "the engine that it was made for",
        )
    ]


def _shown(method: str) -> str:
    return "unquantised" if method == "none" else method


def check_models(target: str | None, draft: str | None, engine: EngineFacts, gpus: Sequence[Gpu]) -> list[Finding]:
    """All that speaks against two models as a pair, or against one alone, apart from sizes. Raises ModelError."""
    roles: tuple[tuple[Role, str | None], ...] = (("target", target), ("draft", draft))
    support = [f for role, spec in roles if spec for f in check_support(describe(spec), role, engine, gpus)]
    support += engine.check_draft(target, draft) if draft else []
    return [*(vocabulary.check_specs(target, draft, engine) if target and draft else []), *support]


def usual_engine(weights: str | None) -> str:
    """The engine that is assumed where none was named, by the format of the target's weights: Slipstream for folders,
    llama.cpp for GGUF files and for models that are not here.
    """
    return OWN if weights == "safetensors" else "llama-server"


def own_packages(machine: Machine, engine: EngineFacts) -> Packages | None:
    """Slipstream's own packages, for its own engine; None for another, which has an environment of its own."""
    return Packages(machine.torch, machine.llama_cpp) if engine.name == OWN else None
