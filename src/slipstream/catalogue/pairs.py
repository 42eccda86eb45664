"""Pairs: models grouped by vocabulary, which of them can draft for a target, and the predicted speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import Path

from slipstream.catalogue.families import Family, recognise
from slipstream.catalogue.model_scan import FoundModel, candidate, find
from slipstream.findings import RULES, Finding, blocking
from slipstream.models.text.vocabulary import is_filler
from slipstream.predict.forecast import forecast
from slipstream.predict.machine import Machine
from slipstream.predict.memory import MemoryUser, Need
from slipstream.predict.sizes import Sizes, is_too_large
from slipstream.predict.speed import WORTH_IT, Prediction
from slipstream.vocabularies.rules import TRANSLATE
from slipstream.vocabularies.token_strings import Strings, token_strings

__all__ = ["FoundModel", "PairJudge", "Ranked", "candidate", "find", "groups", "rank", "suggestions"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate as a draft: a prediction, or the reason why it can't draft."""

    candidate: FoundModel
    prediction: Prediction | None
    rejection: str | None = None
    note: str | None = None
    assumptions: list[str] = field(default_factory=list)  # what the prediction takes for granted

    @property
    def is_usable(self) -> bool:
        return self.prediction is not None and self.rejection is None


def groups(candidates: Iterable[FoundModel]) -> dict[str, list[FoundModel]]:
    """Readable models by vocabulary: the largest model first in each group, the largest groups first."""
    by_vocabulary: dict[str, list[FoundModel]] = {}
    for found in candidates:
        if found.vocabulary and found.sizes:
            by_vocabulary.setdefault(found.vocabulary, []).append(found)
    for members in by_vocabulary.values():
        members.sort(key=lambda c: -(c.sizes.num_parameters if c.sizes else 0))
    return dict(sorted(by_vocabulary.items(), key=lambda item: -len(item[1])))


@dataclass(frozen=True, slots=True)
class PairJudge:
    """What decides about a pair: the machine, the engine, the workload, and what the doctor finds in two models."""

    machine: Machine
    engine: MemoryUser
    check: Callable[[FoundModel, FoundModel], list[Finding]]  # of vocabularies and support, for target and draft
    context: int | None = None  # the longest text of the workload; None: not given


def rank(target: FoundModel, candidates: Iterable[FoundModel], judge: PairJudge) -> list[Ranked]:
    """The candidates as drafts for a target: fastest first, then those that can't draft, each with the reason.

    With a context, a draft with a shorter one is rejected. Without it, a short context is only noted.
    """
    others = [other for other in candidates if other.path.resolve() != target.path.resolve()]
    ranked = [_judged(target, other, judge) for other in others]
    return sorted(ranked, key=lambda r: -r.prediction.speedup if r.is_usable and r.prediction else float("inf"))


def _judged(target: FoundModel, other: FoundModel, judge: PairJudge) -> Ranked:
    ours, theirs, context = target.sizes, other.sizes, judge.context
    if ours is None or theirs is None:
        return Ranked(other, None, f"can't be read: {target.problem or other.problem}")
    if is_too_large(ours, theirs):
        return Ranked(other, None, f"not smaller than the target: {_billions(theirs)}, target {_billions(ours)}")
    limit = theirs.context_length
    if context and 0 < limit < context:
        return Ranked(other, None, f"context too short: trained for {limit:,} tokens, the workload has {context:,}")
    found = judge.check(target, other)
    if problems := blocking(found):
        return Ranked(other, None, _rejection(target, other, problems[0]))
    is_translated = any(finding.id == TRANSLATE.id for finding in found)
    expected = forecast(judge.machine, ours, theirs, judge.engine, Need.of(ours, context), is_translated)
    if expected.prediction is None:
        return Ranked(other, None, f"does not fit: {expected.findings[0].evidence}")
    notes = [
        *(["not expected to pay off here"] if expected.prediction.speedup < WORTH_IT else []),
        *([f"trained for {limit:,} tokens, does not help beyond that"] if 0 < limit < ours.context_length else []),
        *(RULES[finding.id].title for finding in [*found, *expected.findings] if finding.severity == "slows"),
    ]
    return Ranked(other, expected.prediction, note="; ".join(notes) or None, assumptions=expected.assumptions)


def _rejection(target: FoundModel, other: FoundModel, finding: Finding) -> str:
    if finding.id.startswith("vocabulary-") and target.vocabulary != other.vocabulary:
        return difference(target.path, other.path)
    return f"{finding.id}: {finding.evidence}"


def difference(target: Path, draft: Path) -> str:
    """How two vocabularies differ, in one sentence."""
    ours, theirs = _strings(target), _strings(draft)
    differing = [
        (token_id, a, b)
        for token_id, (a, b) in enumerate(zip_longest(ours, theirs))
        if a != b and not (is_filler(a) and is_filler(b))
    ]
    if not differing:
        return "another vocabulary"
    token_id, a, b = differing[0]
    return (
        f"another vocabulary: id {token_id} is {_shown(a)} in the target and {_shown(b)} here; "
        f"{len(differing):,} of {max(len(ours), len(theirs)):,} ids differ"
    )


@cache
def _strings(path: Path) -> Strings:
    return token_strings(path)


def _shown(text: str | None) -> str:
    return "no token" if is_filler(text) else repr(text)


def _billions(sizes: Sizes) -> str:
    return f"{sizes.num_parameters / 1e9:.2f} billion parameters"


# -- when no local model fits -----------------------------------------------------------------------------------------


def suggestions(target: FoundModel) -> tuple[Family | None, list[str]]:
    """The family of a target's vocabulary, and lines that list published models with the same vocabulary."""
    family = recognise(_strings(target.path)) if target.vocabulary else None
    if family is None or target.sizes is None:
        return None, ["its vocabulary is not one of the known families; draft without a model: --drafter suffix"]
    lines = [
        f"{member.repo} ({member.params_b:g} B, context {member.context_length:,})"
        for member in family.drafts_for(target.sizes.num_parameters / 1e9)
    ]
    if not lines:
        lines = [f"no published {family.name} model is small enough; draft without a model: --drafter suffix"]
    return family, [*lines, *([family.note] if family.note else [])]
