"""The examination: everything the doctor can check for one case, in one list of findings and a verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from slipstream.core.sampling import Sampling
from slipstream.diagnosis import configs, logs, machine_checks, pair_checks
from slipstream.diagnosis.alternatives import alternatives
from slipstream.errors import ModelError, UnsupportedModelError, UsageError
from slipstream.findings import Finding, blocks, worst_first
from slipstream.model_files import quantisation, weights
from slipstream.model_files.model_facts import ModelFacts, describe
from slipstream.model_files.weight_files import MISSING
from slipstream.predict import speed
from slipstream.predict.machine import Machine, inspect
from slipstream.predict.speed import Prediction, Sizes
from slipstream.vocabularies import checks as vocabulary

Role = Literal["target", "draft"]
_WITH_CONFIGS = {"llama.cpp": "llama-server", "exllama": "tabbyapi"}  # what reads the configuration of an engine
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked about. All of it may be left out: the machine alone is looked at then."""

    target: str | None = None
    draft: str | None = None
    engine: str = "slipstream"
    config: Path | None = None
    log: Path | None = None
    context: int | None = None  # tokens of prompt and answer that the work needs
    batch: int = 1  # requests at the same time
    sampling: Sampling = field(default_factory=Sampling)
    python: str = sys.executable  # of the environment whose torch and safetensors are tried on sound files


@dataclass(slots=True)
class Diagnosis:
    case: Case
    machine: Machine
    findings: list[Finding] = field(default_factory=list)
    facts: dict[Role, ModelFacts] = field(default_factory=dict)
    prediction: Prediction | None = None

    @property
    def is_blocked(self) -> bool:
        return blocks(self.findings)

    @property
    def verdict(self) -> str:
        """In a sentence."""
        worst = worst_first(self.findings)
        if self.is_blocked:
            return f"blocked: {worst[0].cause}"
        gain = self._gain()
        if any(finding.severity == "slows" for finding in worst):
            return f"works, but slower than it could: {worst[0].cause}{gain}"
        return f"nothing stands in the way{gain}"

    def _gain(self) -> str:
        p = self.prediction
        if p is None:
            return ""
        return (
            f". Predicted: {p.plain_tokens_per_s:.0f} tokens/s plain, {p.tokens_per_s:.0f} ({p.speedup:.1f}x) with "
            f"{p.n_draft} drafted tokens a round"
        )

    def __repr__(self) -> str:
        return f"<Diagnosis {self.verdict!r}, {len(self.findings)} findings>"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "verdict": self.verdict,
            "findings": [finding.to_dict() for finding in worst_first(self.findings)],
            "engine": self.case.engine,
            "machine": asdict(self.machine),
            "models": {role: asdict(facts) for role, facts in self.facts.items()},
            "prediction": asdict(self.prediction) if self.prediction else None,
        }


def examine(case: Case, say: Say = lambda line: None) -> Diagnosis:
    """Looks at everything the case names. Bad files are findings; raises UsageError for a case that can't be."""
    if case.draft and not case.target:
        raise UsageError("a draft is examined with its target: give --target too")
    say("looking at the machine")
    result = Diagnosis(case, inspect())
    result.findings += machine_checks.check(result.machine, case.engine)
    for role, spec in _models(case):
        say(f"reading the {role} {spec}")
        result.findings += _check_model(result, role, spec)
    if case.target and case.draft and len(result.facts) == 2:
        say("comparing the vocabularies")
        result.findings += vocabulary.check_specs(case.target, case.draft, case.engine)
    result.findings += _check_fit(result)
    result.findings += _check_texts(case, say)
    return result


def _models(case: Case) -> Iterator[tuple[Role, str]]:
    if case.target:
        yield "target", case.target
    if case.draft:
        yield "draft", case.draft


def _check_model(result: Diagnosis, role: Role, spec: str) -> list[Finding]:
    """Its files, and whether this engine on this machine takes them."""
    found = weights.check_weights(spec)
    try:
        facts = result.facts[role] = describe(spec)
    except ModelError as error:
        return found or [MISSING.finding(str(error), meaning="it was not found.", fix="Check its name.")]
    if not found and facts.format == "safetensors":
        found += weights.load_one_tensor(spec, result.case.python)
    found += quantisation.check_quantisation(facts, result.case.engine, role)
    for gpu in result.machine.gpus:
        if gpu.compute_capability:
            major, minor = divmod(round(gpu.compute_capability * 10), 10)
            found += quantisation.check_capability(facts, (major, minor))
    return found


def _check_fit(result: Diagnosis) -> list[Finding]:
    """Sizes, contexts and settings against each other; what else would help where speculation can't pay."""
    case, found = result.case, pair_checks.check_sampling(result.case.sampling) if result.case.draft else []
    if case.context:
        found += [f for facts in result.facts.values() for f in pair_checks.check_rope(facts, case.context)]
    try:
        sizes = {role: Sizes.of(facts) for role, facts in result.facts.items()}
    except UnsupportedModelError:
        return found
    target, draft = sizes.get("target"), sizes.get("draft")
    if target is None:
        return found
    if case.context:
        found += pair_checks.check_context(target, draft, case.context)
    if draft and not result.is_blocked:
        translated = any(finding.id == vocabulary.TRANSLATE.id for finding in result.findings)
        kind: speed.PairKind = "translated" if translated else "same family"
        prediction = result.prediction = speed.predict_pair(result.machine, target, draft, kind, case.batch)
        found += pair_checks.check_pair(target, draft, prediction)
        device = speed.DeviceSpeed.of(result.machine, target.weight_bytes + draft.weight_bytes)
        found += pair_checks.check_batch(target, draft, device, case.batch)
    if result.prediction is None or result.prediction.speedup < speed.WORTH_IT:
        found += alternatives(result.machine, target)
    return found


def _check_texts(case: Case, say: Say) -> list[Finding]:
    found = []
    if case.config:
        say(f"reading {case.config}")
        text = _read(case.config)
        engine = _named_engine(case) or configs.guess_engine(text, case.config.name)
        if engine is None:
            raise UsageError(f"{case.config} is of no engine that is known here: name it with --engine")
        found += configs.lint(engine, text)
    if case.log:
        say(f"reading {case.log}")
        found += logs.explain(_read(case.log), _named_engine(case))
    return found


def _named_engine(case: Case) -> str | None:
    """The program whose files are meant; Slipstream has none of its own, so there the text has to tell."""
    return None if case.engine == "slipstream" else _WITH_CONFIGS.get(case.engine, case.engine)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
