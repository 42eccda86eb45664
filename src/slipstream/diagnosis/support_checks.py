"""Whether an engine on a machine supports a model and a pair: the doctor and `pairs` ask the same questions here."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.diagnosis.quantisation_checks import check_quantisation
from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding
from slipstream.model_files import quantisation
from slipstream.model_files.model_facts import ModelFacts, describe
from slipstream.model_files.quantisation import Role
from slipstream.predict.gpus import Gpu
from slipstream.predict.machine import Machine
from slipstream.predict.packages import Packages
from slipstream.vocabularies import checks as vocabulary

OWN = "slipstream"


def check_support(facts: ModelFacts, role: Role, engine: EngineFacts, gpus: Sequence[Gpu]) -> list[Finding]:
    """Whether the engine takes these weights in this role, and the GPUs have what they need."""
    found = check_quantisation(facts, engine, role)
    for gpu in gpus:
        if gpu.compute_capability:
            major, minor = divmod(round(gpu.compute_capability * 10), 10)
            found += quantisation.check_capability(facts, (major, minor))
    return found


def check_models(target: str | None, draft: str | None, engine: EngineFacts, gpus: Sequence[Gpu]) -> list[Finding]:
    """All that speaks against two models as a pair, or against one alone, apart from sizes. Raises ModelError."""
    roles: tuple[tuple[Role, str | None], ...] = (("target", target), ("draft", draft))
    support = [f for role, spec in roles if spec for f in check_support(describe(spec), role, engine, gpus)]
    return [*(vocabulary.check_specs(target, draft, engine) if target and draft else []), *support]


def usual_engine(weights: str | None) -> str:
    """The engine that is assumed where none was named, by the format of the target's weights: Slipstream for folders,
    llama.cpp for GGUF files and for models that are not here.
    """
    return OWN if weights == "safetensors" else "llama-server"


def own_packages(machine: Machine, engine: EngineFacts) -> Packages | None:
    """Slipstream's own packages, for its own engine; None for another, which has an environment of its own."""
    return Packages(machine.torch, machine.llama_cpp) if engine.name == OWN else None
