"""Whether an engine on a machine supports a model and a pair: the doctor and `pairs` ask the same questions here."""

from __future__ import annotations

from slipstream.diagnosis.quantisation_checks import check_quantisation
from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding
from slipstream.model_files import quantisation
from slipstream.model_files.model_facts import ModelFacts, describe
from slipstream.model_files.quantisation import Role
from slipstream.predict.machine import Machine
from slipstream.vocabularies import checks as vocabulary


def check_support(facts: ModelFacts, role: Role, engine: EngineFacts, machine: Machine) -> list[Finding]:
    """Whether the engine takes these weights in this role, and the machine's GPUs have what they need."""
    found = check_quantisation(facts, engine, role)
    for gpu in machine.gpus:
        if gpu.compute_capability:
            major, minor = divmod(round(gpu.compute_capability * 10), 10)
            found += quantisation.check_capability(facts, (major, minor))
    return found


def check_models(target: str, draft: str, engine: EngineFacts, machine: Machine) -> list[Finding]:
    """All that speaks against two models as a pair, apart from their sizes. Raises ModelError."""
    roles: tuple[tuple[Role, str], ...] = (("target", target), ("draft", draft))
    support = [f for role, spec in roles for f in check_support(describe(spec), role, engine, machine)]
    return [*vocabulary.check_specs(target, draft, engine), *support]
