"""audit: prove that speculation does not change the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from slipstream.backends import MachineOptions
from slipstream.core.stream import Limits
from slipstream.measurement.audit import AuditedAnswer, AuditQuestions, logit_gap, tie_tolerance
from slipstream.measurement.audit import audit as audit_answers
from slipstream.measurement.engine_generator import EngineGenerator
from slipstream.measurement.results import PLAIN
from slipstream.tasks.audit_engine import audit_engine
from slipstream.tasks.bench import default_drafters
from slipstream.tasks.engine_comparison import EngineComparison
from slipstream.tasks.models import Models, load_models
from slipstream.tasks.options import (
    AUDIT_WORKLOAD,
    ENGINE_CONTEXT,
    AuditOptions,
    EngineChoice,
    EngineOptions,
    ModelOptions,
    RunningEngineOptions,
    WorkloadOptions,
    as_models,
    check_engine_options,
)
from slipstream.tasks.reporter import SILENT, Reporter


@dataclass(slots=True)
class AuditResult:
    """What was compared. `spell` writes a token out; None where an engine only tells texts."""

    title: str
    model: dict[str, Any]
    answers: list[AuditedAnswer] = field(default_factory=list)
    complete: bool = True
    error: Exception | None = None  # what ended it early
    spell: Callable[[int], str] | None = None

    def count(self, outcome: str) -> int:
        return sum(answer.outcome == outcome for answer in self.answers)

    @property
    def drafted_nothing(self) -> list[str]:
        """Drafters that drafted nothing in any answer, so that the audit shows nothing about them."""
        by_drafter: dict[str, list[int | None]] = {}
        for answer in self.answers:
            by_drafter.setdefault(answer.drafter, []).append(answer.num_drafted)
        return [drafter for drafter, counts in by_drafter.items() if all(count == 0 for count in counts)]

    @property
    def identical(self) -> bool | None:
        """Whether all texts are those of plain decoding. None if they are, but a drafter drafted nothing."""
        if not self.answers or self.count("identical") != len(self.answers):
            return False
        return None if self.drafted_nothing else True

    @property
    def passed(self) -> bool:
        """No bug, and every drafter drafted, as far as the engine reports it."""
        return bool(self.answers) and not self.count("BUG") and not self.drafted_nothing

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.count(outcome)} {outcome}" for outcome in ("identical", "tie", "BUG"))
        return f"<AuditResult {self.title}: {counts}>"

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "slipstream.audit/1",
            "model": self.model,
            "partial": not self.complete,
            "identical": self.identical,
            "drafted_nothing": self.drafted_nothing,
            "bugs": self.count("BUG"),
            "ties": self.count("tie"),
            "findings": [asdict(answer) for answer in self.answers],
        }


def audit(
    models: str | ModelOptions | None = None,
    workload: WorkloadOptions = AUDIT_WORKLOAD,
    options: AuditOptions = AuditOptions(),
    *,
    machine: MachineOptions = MachineOptions(),
    engine: EngineOptions = EngineOptions(),
    running: RunningEngineOptions = RunningEngineOptions(),
    reporter: Reporter = SILENT,
) -> AuditResult:
    """Compares speculative answers with plain ones, token by token.

    A difference is a tie when the two tokens' logits lie so close that rounding decides, and a BUG otherwise. Ctrl-C
    ends it, and the result says that it is partial; an error that ends it is in the result, where there are answers.
    """
    models = as_models(models)
    check_engine_options(machine, engine, running)
    questions = AuditQuestions(workload.read(), options.samplings(), Limits(workload.max_tokens))
    if engine.engine:
        choice = EngineChoice.measured(engine, machine.context_length or ENGINE_CONTEXT)
        comparison = EngineComparison.of(choice, models, running)
        done = audit_engine(comparison, questions, reporter)
        name = comparison.models.name
        facts = {"name": name, "engine": engine.engine}
        return AuditResult(f"{name} on {engine.engine}", facts, done.answers, done.complete)
    models = models.compared()
    loaded = load_models(replace(models, drafter=None), machine, reporter)
    info = loaded.pair.target.model.info
    result = AuditResult(f"{info.name}, {info.dtype}, {info.device}", asdict(info))
    result.spell = loaded.pair.target.tokenizer.token_text
    try:
        _run(result, loaded, models.drafters() or default_drafters(loaded), questions, reporter)
    except KeyboardInterrupt:
        result.complete = False
    except Exception as error:  # of any kind: what was found until then is kept
        if not result.answers:
            raise
        result.complete, result.error = False, error
    return result


def _run(
    result: AuditResult, models: Models, drafters: Sequence[str], questions: AuditQuestions, reporter: Reporter
) -> None:
    """Adds answers to the result as they come."""
    generators = [EngineGenerator(label, partial(models.engine, label)) for label in [PLAIN, *drafters]]
    model, encode = models.pair.target.model, models.engine(PLAIN).encode
    gap_of = logit_gap(model, lambda prompt: encode(prompt.request()))
    total = len(questions.prompts) * len(questions.samplings) * len(drafters)
    for answer in audit_answers(generators[0], generators[1:], questions, tie_tolerance(model.info), gap_of):
        result.answers.append(answer)
        reporter.progress(len(result.answers), total, f"{answer.drafter}: {answer.outcome}")
