"""Runs all checks of the doctor for one case, and returns the findings and a verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from slipstream.catalogue.named_models import check_names
from slipstream.core.sampling import Sampling
from slipstream.diagnosis import configs, logs, machine_checks, pair_checks
from slipstream.diagnosis.alternatives import Workload, alternatives
from slipstream.diagnosis.log_figures import Figure, figures
from slipstream.diagnosis.log_signs import NOT_READY
from slipstream.diagnosis.support_checks import OWN, check_support, own_packages
from slipstream.engines import find_folder
from slipstream.errors import ModelError, UnsupportedModelError, UsageError
from slipstream.findings import Finding, blocks, worst_first
from slipstream.load_checks import check_model
from slipstream.model_files import weights
from slipstream.model_files.head_checks import NOT_A_TARGET, check_head, is_head
from slipstream.model_files.model_facts import ModelFacts, describe
from slipstream.model_files.quantisation import Role
from slipstream.model_files.tensor_probe import SOUND, load_one_tensor
from slipstream.model_files.weight_files import NOT_HERE
from slipstream.parsing.log_reading import read_log
from slipstream.parsing.manifests import as_shell
from slipstream.predict.forecast import ASSUMED, forecast
from slipstream.predict.machine import Machine, inspect
from slipstream.predict.memory import Need
from slipstream.predict.packages import packages_of
from slipstream.predict.sizes import Sizes
from slipstream.predict.speed import WORTH_IT, Prediction
from slipstream.reading import MAX_CONFIG_BYTES, read_given_text
from slipstream.vocabularies import checks as vocabulary
from slipstream.vocabularies.rules import TRANSLATE

READ_FAILED = "log-tensor-read"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """What to check. Every field is optional; without any, only the machine is checked."""

    target: str | None = None
    draft: str | None = None
    engine: str = OWN
    config: Path | None = None
    log: Path | None = None
    context: int | None = None  # tokens of prompt and answer that the workload needs
    batch: int = 1  # requests at the same time
    sampling: Sampling = field(default_factory=Sampling)
    python: str | None = None  # of the engine's environment: its packages are judged; None: Slipstream's, if it is that

    @property
    def judged_python(self) -> str | None:
        """The Python whose packages run the models; None: unknown, since other engines have their own environment."""
        return self.python or (sys.executable if self.engine == OWN else None)


@dataclass(slots=True)
class Diagnosis:
    case: Case
    machine: Machine
    findings: list[Finding] = field(default_factory=list)
    facts: dict[Role, ModelFacts] = field(default_factory=dict)
    prediction: Prediction | None = None
    checked: list[str] = field(default_factory=list)  # what was looked at, in words
    figures: list[Figure] = field(default_factory=list)  # read from the log
    configured: str | None = None  # the engine that the configuration is for

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
            return f"unknown: {worst[0].cause} In the log: {worst[0].evidence}"
        gain = f". Predicted: {self.prediction}" if self.prediction else ""
        if any(finding.severity == "slows" for finding in worst):
            return f"works, but slower than possible: {worst[0].cause}{gain}"
        found = "no problems found"
        if any(finding.id == NOT_READY.id for finding in worst):
            found += ", but the log does not show that the engine worked"
        return f"{found} (checked: {', '.join(self.checked)}){gain}"

    def __repr__(self) -> str:
        return f"<Diagnosis {self.verdict!r}, {len(self.findings)} findings>"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "verdict": self.verdict,
            "checked": self.checked,
            "findings": [finding.to_dict() for finding in worst_first(self.findings)],
            "engine": self.case.engine,
            "machine": asdict(self.machine),
            "models": {role: asdict(facts) for role, facts in self.facts.items()},
            "prediction": asdict(self.prediction) if self.prediction else None,
            "figures": [figure.to_dict() for figure in self.figures],
        }


def examine(case: Case, say: Say = lambda line: None) -> Diagnosis:
    """Checks everything in the case. Bad files are findings. Raises UsageError for a case that makes no sense."""
    say("checking the machine")
    packages = packages_of(case.python) if case.python else None  # a wrong path fails before anything is read
    result, engine = Diagnosis(case, inspect(), checked=["this machine"]), find_folder(case.engine).facts
    on_machine = machine_checks.check(result.machine, engine, packages or own_packages(result.machine, engine))
    is_of_here = bool(case.target or case.draft) or not (case.config or case.log)  # a log may be another machine's
    result.findings += [f for f in on_machine if is_of_here or f.id != machine_checks.NO_GPU.id]
    are_sound = True
    for role, spec in _models(case):
        say(f"reading the {role} {spec}")
        found = _check_files(case, role, spec)
        are_sound = are_sound and not blocks(found)
        result.findings += found + _check_model(result, role, spec, found)
        result.checked.append(f"the {role}'s files" if role in result.facts else f"the {role}'s name")
    if case.target and case.draft and len(result.facts) < 2:
        result.findings = _with_names(result.findings, check_names(case.target, case.draft))
    if are_sound:  # else all that follows from damaged files would be found too
        result.findings += _check_draft(result, say)
        result.findings += _check_fit(result)
    result.findings += _check_config(result, say) + _check_log(result, say)
    result.findings += _cleared_files(result)
    return result


def _with_names(found: list[Finding], by_name: list[Finding]) -> list[Finding]:
    """Puts findings from the models' names first, and makes "the model is not here" a note beside them."""
    if not by_name:
        return found
    return [*by_name, *(replace(f, severity="note") if f.id == NOT_HERE.id else f for f in found)]


def _models(case: Case) -> Iterator[tuple[Role, str]]:
    if case.target:
        yield "target", case.target
    if case.draft:
        yield "draft", case.draft


def _check_files(case: Case, role: Role, spec: str) -> list[Finding]:
    """For Slipstream all that would refuse the model at load; for other engines what is wrong with the files."""
    if is_head(spec):
        return check_head(spec)
    if _named_engine(case) is None:
        return check_model(spec, answers=role == "target")
    return weights.check_weights(spec)


def _check_model(result: Diagnosis, role: Role, spec: str, in_files: list[Finding]) -> list[Finding]:
    """Whether this engine on this machine supports a model. `in_files` was found in its files."""
    try:
        facts = result.facts[role] = describe(spec)
    except ModelError as error:
        return [] if blocks(in_files) else [weights.finding_of(error)]
    if role == "target" and facts.draft_head:
        return [NOT_A_TARGET.finding(_head_line(facts), target=facts.made_for or "TARGET", head=spec)]
    found: list[Finding] = []
    python = result.case.judged_python
    if not blocks(in_files) and facts.format == "safetensors" and python:
        found += load_one_tensor(spec, python)
    engine = find_folder(result.case.engine).facts
    found += engine.check_draft(result.case.target, spec) if role == "draft" else []
    return [*found, *check_support(facts, role, engine, result.machine.gpus)]


def _head_line(facts: ModelFacts) -> str:
    return f"{facts.name} is a draft head ({facts.draft_head}){f' for {facts.made_for}' if facts.made_for else ''}"


def _check_draft(result: Diagnosis, say: Say) -> list[Finding]:
    """Whether the draft belongs to the target. A head has no vocabulary of its own to compare."""
    case = result.case
    if not (case.target and case.draft and len(result.facts) == 2):
        return []
    say("comparing draft and target")
    if result.facts["draft"].draft_head:
        result.checked.append("the head with its target")
        return check_head(case.draft, case.target, case.context)
    result.checked.append("both vocabularies")
    return vocabulary.check_specs(case.target, case.draft, find_folder(case.engine).facts)


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
    engine = find_folder(case.engine).facts
    translated = any(finding.id == TRANSLATE.id for finding in result.findings)
    need = Need.of(target, case.context, batch=case.batch)
    expected = forecast(result.machine, target, draft, engine, need, translated)
    found += expected.findings
    if draft and expected.prediction and not result.is_blocked:
        result.prediction = expected.prediction
        found += pair_checks.check_pair(target, draft, expected)
        found += pair_checks.check_batch(target, draft, expected, case.batch)
        found.append(ASSUMED.finding("; ".join(expected.assumptions)))
    if not expected.is_refused and (result.prediction is None or result.prediction.speedup < WORTH_IT):
        found += alternatives(result.machine, target, engine, Workload(case.context) if case.context else None)
    return found


def _check_config(result: Diagnosis, say: Say) -> list[Finding]:
    case = result.case
    if case.config is None:
        return []
    text = as_shell(_read(case.config, MAX_CONFIG_BYTES))
    guessed, is_script = configs.guess_engine(text, case.config.name), configs.is_script(text, case.config.name)
    engine = guessed if is_script else _named_engine(case) or guessed
    if engine is None and not is_script:
        raise UsageError(f"can't tell which engine {case.config} is for: name the engine with --engine")
    result.configured = engine
    kind = f"the configuration of {find_folder(engine).facts.title}" if engine else "Python code"
    say(f"reading {case.config} as {kind}")
    result.checked.append(kind)
    found = list(configs.lint(engine, text)) if engine else []
    return [*found, *configs.lint_script(text)] if is_script else found


def _check_log(result: Diagnosis, say: Say) -> list[Finding]:
    """What the log shows. Its figures go into the result."""
    case = result.case
    if case.log is None:
        return []
    say(f"reading {case.log}")
    try:
        log = read_log(case.log, logs.marks_to_keep())
    except OSError as error:
        raise UsageError(f"can't read {case.log}: {error.strerror}") from error
    if not log.text.strip():
        raise UsageError(f"{case.log} is empty: give the log of a run")
    engine = _named_engine(case)
    report = logs.judge(log, engine, result.configured)
    result.figures += figures(log)
    result.checked.append(report.checked)
    return [*report.findings, *configs.lint_blocks(log, engine)]


def _cleared_files(result: Diagnosis) -> list[Finding]:
    """Says that the files are not the cause of a weight that could not be read, if nothing was found in them."""
    ids = {finding.id for finding in result.findings}
    in_files = [finding for finding in result.findings if finding.id.startswith("weights-")]
    if READ_FAILED not in ids or blocks(in_files) or not result.facts:
        return []
    names = " and ".join(facts.name for facts in result.facts.values())
    return [SOUND.finding(f"nothing is wrong with the files of {names}")]


def _named_engine(case: Case) -> str | None:
    """The engine whose files are checked; None for Slipstream, which has no such files: the text then decides."""
    return None if case.engine == OWN else case.engine


def _read(path: Path, max_bytes: int) -> str:
    try:
        return read_given_text(path, max_bytes)
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from error
