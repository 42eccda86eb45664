"""Runs all checks of the doctor for one case, and returns the findings and a verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from slipstream.core.sampling import Sampling
from slipstream.diagnosis import configs, logs, machine_checks, pair_checks
from slipstream.diagnosis.alternatives import alternatives
from slipstream.diagnosis.quantisation_checks import check_quantisation
from slipstream.engines import find_folder
from slipstream.errors import ModelError, UnsupportedModelError, UsageError
from slipstream.findings import Finding, blocks, worst_first
from slipstream.model_files import quantisation, weights
from slipstream.model_files.head_checks import NOT_A_TARGET, check_head
from slipstream.model_files.model_facts import ModelFacts, describe
from slipstream.model_files.weight_files import MISSING
from slipstream.predict import speed
from slipstream.predict.machine import Machine, inspect
from slipstream.predict.speed import Prediction, Sizes
from slipstream.vocabularies import checks as vocabulary
from slipstream.vocabularies.rules import TRANSLATE

Role = Literal["target", "draft"]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """What to check. Every field is optional; without any, only the machine is checked."""

    target: str | None = None
    draft: str | None = None
    engine: str = "slipstream"
    config: Path | None = None
    log: Path | None = None
    context: int | None = None  # tokens of prompt and answer that the workload needs
    batch: int = 1  # requests at the same time
    sampling: Sampling = field(default_factory=Sampling)
    python: str = sys.executable  # interpreter of the environment whose torch and safetensors are tested on valid files


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
    def is_unknown(self) -> bool:
        """Whether there is a failure that no rule explains, and none that one does."""
        return not self.is_blocked and any(finding.severity == "unknown" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        worst = worst_first(self.findings)
        if self.is_blocked:
            return f"blocked: {worst[0].cause}"
        if self.is_unknown:
            return f"unknown: {worst[0].cause} The last error: {worst[0].evidence}"
        gain = self._gain()
        if any(finding.severity == "slows" for finding in worst):
            return f"works, but slower than possible: {worst[0].cause}{gain}"
        return f"no problems found{gain}"

    def _gain(self) -> str:
        p = self.prediction
        if p is None:
            return ""
        noun = "token" if p.n_draft == 1 else "tokens"
        return (
            f". Predicted: {p.plain_tokens_per_s:.0f} tokens/s plain, {p.tokens_per_s:.0f} tokens/s ({p.speedup:.1f}x) "
            f"with {p.n_draft} drafted {noun} per step"
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
    """Checks everything in the case. Bad files are findings. Raises UsageError for a case that makes no sense."""
    if case.draft and not case.target:
        raise UsageError("a draft can only be checked with its target: add --target")
    say("checking the machine")
    result = Diagnosis(case, inspect())
    result.findings += machine_checks.check(result.machine, find_folder(case.engine).facts)
    for role, spec in _models(case):
        say(f"reading the {role} {spec}")
        result.findings += _check_model(result, role, spec)
    if case.target and case.draft and len(result.facts) == 2:
        say("comparing draft and target")
        result.findings += _check_draft(result, case.target, case.draft)
    result.findings += _check_fit(result)
    result.findings += _check_texts(case, say)
    return result


def _models(case: Case) -> Iterator[tuple[Role, str]]:
    if case.target:
        yield "target", case.target
    if case.draft:
        yield "draft", case.draft


def _check_model(result: Diagnosis, role: Role, spec: str) -> list[Finding]:
    """Checks the files of a model, and whether this engine on this machine supports them."""
    found = weights.check_weights(spec)
    try:
        facts = result.facts[role] = describe(spec)
    except ModelError as error:
        return found or [MISSING.finding(str(error), meaning="the model was not found.", fix="Check its name or path.")]
    if role == "target" and facts.draft_head:
        return [NOT_A_TARGET.finding(_head_line(facts), target=facts.made_for or "TARGET", head=spec)]
    if not found and facts.format == "safetensors":
        found += weights.load_one_tensor(spec, result.case.python)
    found += check_quantisation(facts, find_folder(result.case.engine).facts, role)
    for gpu in result.machine.gpus:
        if gpu.compute_capability:
            major, minor = divmod(round(gpu.compute_capability * 10), 10)
            found += quantisation.check_capability(facts, (major, minor))
    return found


def _head_line(facts: ModelFacts) -> str:
    return f"{facts.name} is a draft head ({facts.draft_head}){f' for {facts.made_for}' if facts.made_for else ''}"


def _check_draft(result: Diagnosis, target: str, draft: str) -> list[Finding]:
    """Whether the draft belongs to the target. A head has no vocabulary of its own to compare."""
    if result.facts["draft"].draft_head:
        return check_head(draft, target, result.case.context)
    return vocabulary.check_specs(target, draft, find_folder(result.case.engine).facts)


def _check_fit(result: Diagnosis) -> list[Finding]:
    """Checks sizes, contexts and settings, and lists alternatives if speculation is not expected to pay off."""
    case, found = result.case, pair_checks.check_sampling(result.case.sampling) if result.case.draft else []
    if case.context:
        found += [f for facts in result.facts.values() for f in pair_checks.check_rope(facts, case.context)]
    try:
        sizes = {role: Sizes.of(facts) for role, facts in result.facts.items()}
    except UnsupportedModelError:
        return found
    target, draft = sizes.get("target"), sizes.get("draft")
    if target is None or any(facts.draft_head for facts in result.facts.values()):
        return found
    if case.context:
        found += pair_checks.check_context(target, draft, case.context)
    if draft and not result.is_blocked:
        translated = any(finding.id == TRANSLATE.id for finding in result.findings)
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
            raise UsageError(f"can't tell which engine {case.config} is for: name the engine with --engine")
        found += configs.lint(engine, text)
    if case.log:
        say(f"reading {case.log}")
        found += logs.explain(_read(case.log), _named_engine(case))
    return found


def _named_engine(case: Case) -> str | None:
    """The engine whose files are checked; None for Slipstream, which has no such files: the text then decides."""
    return None if case.engine == "slipstream" else case.engine


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}") from error
