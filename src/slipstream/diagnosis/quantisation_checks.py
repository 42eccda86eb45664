"""Which engine supports the quantisation of a model, as target or draft."""

from __future__ import annotations

from slipstream.engines import folders
from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding, rule
from slipstream.model_files.model_facts import ModelFacts
from slipstream.model_files.quantisation import NO, Role, label

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


def check_quantisation(facts: ModelFacts, engine: EngineFacts, role: Role) -> list[Finding]:
    """Whether an engine supports the model in this role. Empty if it does, or if the method is unknown."""
    if facts.quantisation is None:
        return []
    method = facts.quantisation
    support = engine.quantisations.get(method, NO)
    level = support.target if role == "target" else support.draft
    seen = f"{role} {facts.name}: {label(facts)}"
    if level == "yes":
        return []
    if level == "limited":
        note = support.note.format(format=method.lower())
        return [LIMITED.finding(seen, note=note, instead=engine.best_weights, engine=engine.title)]
    others = [f.title for f in (folder.facts for folder in folders()) if f.quantisations.get(method, NO).target != "no"]
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
