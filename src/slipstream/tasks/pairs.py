"""pairs: which models on this machine work together, and how fast?"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from slipstream.catalogue.families import Family
from slipstream.catalogue.model_scan import FoundModel
from slipstream.catalogue.pairs import PairJudge, Ranked, candidate, find, groups, rank, suggestions
from slipstream.core.stream import Limits
from slipstream.diagnosis import machine_checks
from slipstream.diagnosis.support_checks import OWN, check_models, own_packages, usual_engine
from slipstream.engines import find_folder
from slipstream.engines.facts import EngineFacts
from slipstream.errors import SlipstreamError, UsageError
from slipstream.findings import Finding, blocking
from slipstream.measurement.results import ALL_KINDS
from slipstream.measurement.runner import BenchSettings
from slipstream.models.files import expand_home
from slipstream.predict.machine import Machine, inspect
from slipstream.tasks.bench import bench_models
from slipstream.tasks.models import load_models
from slipstream.tasks.options import ModelOptions, PairsOptions, WorkloadOptions, check_search
from slipstream.tasks.reporter import SILENT, Reporter

NUM_MEASURED = 3  # drafts that `measure` runs
_WORKLOAD = WorkloadOptions(limit=4, max_tokens=48)


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """What a draft did with Slipstream's engine, beside what was predicted."""

    spec: str
    predicted_speedup: float
    speedup: float
    tokens_per_s: float
    acceptance_rate: float
    verdict: str


@dataclass(frozen=True, slots=True)
class ModelGroups:
    """Models that were found: by vocabulary, and those that can't be used."""

    groups: dict[str, list[FoundModel]]
    unreadable: list[FoundModel]

    def __repr__(self) -> str:
        return f"<ModelGroups {sum(map(len, self.groups.values()))} models in {len(self.groups)} groups>"

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "slipstream.pairs/1",
            "groups": [
                {"vocabulary": key, "family": members[0].family, "models": [_model(m) for m in members]}
                for key, members in self.groups.items()
            ],
            "unreadable": [_model(entry) for entry in self.unreadable],
        }


@dataclass(frozen=True, slots=True)
class RankedDrafts:
    """Drafts for one target, the best first, with those that drop out after them."""

    target: FoundModel
    ranked: list[Ranked]
    machine: Machine
    engine: str  # whose way to hold weights was counted
    measured: list[MeasuredPair] = field(default_factory=list)

    def published(self) -> tuple[Family | None, list[str]]:
        """The target's family, and published models that could draft for it."""
        return suggestions(self.target)

    @property
    def usable(self) -> list[Ranked]:
        return [entry for entry in self.ranked if entry.is_usable]

    def __repr__(self) -> str:
        drafts = ", ".join(f"{e.candidate.spec} {e.prediction.speedup:.2f}x" for e in self.usable if e.prediction)
        return f"<RankedDrafts for {self.target.spec}: {drafts or 'none'}>"

    def to_dict(self) -> dict[str, Any]:
        family, lines = self.published()
        rejected = [entry for entry in self.ranked if entry.rejection]
        return {
            "schema": "slipstream.pairs/1",
            "target": _model(self.target),
            "machine": asdict(self.machine),
            "drafts": [
                _model(entry.candidate)
                | {"prediction": asdict(entry.prediction), "note": entry.note, "assumptions": entry.assumptions}
                for entry in self.ranked
                if entry.prediction and entry.is_usable
            ],
            "rejected": [_model(entry.candidate) | {"reason": entry.rejection} for entry in rejected],
            "measured": [asdict(result) for result in self.measured],
            "family": {"name": family.name, "source": family.source} if family else None,
            "published": lines,
            "engine": self.engine,
        }


@dataclass(frozen=True, slots=True)
class BestPair:
    """Models on this machine with the same vocabulary, and the best draft for the first of them."""

    models: list[FoundModel]
    draft: Ranked | None  # None: no other model of the group is small enough


def best_pairs(machine: Machine) -> list[BestPair]:
    """One for each vocabulary, for Slipstream's own engine."""
    judge = judge_of(machine, find_folder(OWN).facts)
    found = groups(find()).values()
    best = (next((entry for entry in rank(models[0], models, judge) if entry.is_usable), None) for models in found)
    return [BestPair(models, draft) for models, draft in zip(found, best, strict=True)]


def judge_of(machine: Machine, engine: EngineFacts, context: int | None = None) -> PairJudge:
    """What the doctor finds decides, so that no pair is proposed that it would block."""
    of_machine = machine_checks.check(machine, engine, own_packages(machine, engine))

    def check(target: FoundModel, draft: FoundModel) -> list[Finding]:
        of_pair = check_models(str(target.path), str(draft.path), engine, machine.gpus)
        return [*blocking(of_machine), *of_pair]

    return PairJudge(machine, engine, check, context)


def pairs(options: PairsOptions = PairsOptions(), *, reporter: Reporter = SILENT) -> ModelGroups | RankedDrafts:
    """Models that share a vocabulary; with a target, drafts for it by predicted speed-up on this machine.

    Looks in the hub cache, Ollama's store, the built-in models, the target's folder and those given. Raises UsageError.
    """
    check_search(options.search)
    if options.measure and (options.target is None or options.engine not in (None, OWN)):
        raise UsageError("--measure needs --target and uses only Slipstream's own engine: remove --engine")
    found = find(options.search, beside=expand_home(options.target) if options.target else None)
    if options.target is None:
        return ModelGroups(groups(found), [entry for entry in found if entry.problem])
    wanted, machine = candidate(options.target), inspect()
    engine = find_folder(options.engine or (OWN if options.measure else usual_engine(wanted.format))).facts
    ranked = rank(wanted, found, judge_of(machine, engine, options.context))
    measured = _measure(wanted, ranked, reporter) if options.measure else []
    return RankedDrafts(wanted, ranked, machine, engine.title, measured)


def _measure(wanted: FoundModel, ranked: list[Ranked], reporter: Reporter) -> list[MeasuredPair]:
    """The best few drafts on the project's own prompts; a draft that this engine can't load is skipped, and said."""
    results = []
    for entry in [entry for entry in ranked if entry.is_usable][:NUM_MEASURED]:
        try:
            results.append(_run(wanted, entry, reporter))
        except SlipstreamError as error:
            reporter.say(f"{entry.candidate.spec} was not measured: {error}")
    return results


def _run(wanted: FoundModel, entry: Ranked, reporter: Reporter) -> MeasuredPair:
    spec = entry.candidate.spec
    models = load_models(ModelOptions(wanted.spec, spec), reporter=reporter)
    settings = BenchSettings(limits=Limits(_WORKLOAD.max_tokens), passes=1)
    result = bench_models(models, ["model"], _WORKLOAD.read(), settings, "slipstream pairs --measure", reporter)
    run = next((run for run in result.runs if run.drafter == "model" and run.kind == ALL_KINDS), None)
    if run is None or entry.prediction is None:
        raise SlipstreamError("interrupted before there was a result")
    return MeasuredPair(
        spec, entry.prediction.speedup, run.speedup.value, run.tokens_per_s, run.acceptance_rate, run.verdict.word
    )


def _model(found: FoundModel) -> dict[str, Any]:
    return asdict(found) | {"path": str(found.path)}
