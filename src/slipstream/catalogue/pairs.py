"""Pairs: models grouped by vocabulary, which of them can draft for a target, and the predicted speed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path

from slipstream.catalogue.families import Family, recognise
from slipstream.catalogue.model_scan import FoundModel, candidate, find
from slipstream.models.vocabulary import is_filler
from slipstream.predict.machine import Machine
from slipstream.predict.speed import WORTH_IT, PairKind, Prediction, Sizes, expanded, predict_pair
from slipstream.vocabularies.token_strings import Strings, token_strings

__all__ = ["FoundModel", "Ranked", "candidate", "find", "groups", "rank", "suggestions"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate as a draft: a prediction, or the reason why it can't draft."""

    candidate: FoundModel
    prediction: Prediction | None
    rejection: str | None = None
    note: str | None = None


def groups(candidates: Iterable[FoundModel]) -> dict[str, list[FoundModel]]:
    """Readable models by vocabulary: the largest model first in each group, the largest groups first."""
    by_vocabulary: dict[str, list[FoundModel]] = {}
    for found in candidates:
        if found.vocabulary and found.sizes:
            by_vocabulary.setdefault(found.vocabulary, []).append(found)
    for members in by_vocabulary.values():
        members.sort(key=lambda c: -(c.sizes.num_parameters if c.sizes else 0))
    return dict(sorted(by_vocabulary.items(), key=lambda item: -len(item[1])))


def rank(
    target: FoundModel,
    candidates: Iterable[FoundModel],
    machine: Machine,
    context: int | None = None,
    *,
    as_stored: bool = True,
) -> list[Ranked]:
    """The candidates as drafts for a target: fastest first, then those that can't draft, each with the reason.

    `context`: the longest text of the workload; a draft with a shorter context is rejected. Without it, a short context
    is only noted. `as_stored`: the engine uses the weights as stored, like llama.cpp; Slipstream's engine dequantises
    them.
    """
    others = [other for other in candidates if other.path.resolve() != target.path.resolve()]
    ranked = [_judged(target, other, machine, context, as_stored) for other in others]
    return sorted(ranked, key=lambda r: -r.prediction.speedup if r.prediction else float("inf"))


def _judged(target: FoundModel, other: FoundModel, machine: Machine, context: int | None, as_stored: bool) -> Ranked:
    if target.sizes is None or other.sizes is None:
        return Ranked(other, None, f"can't be read: {target.problem or other.problem}")
    if target.vocabulary != other.vocabulary:
        return Ranked(other, None, difference(target.path, other.path))
    if other.sizes.num_parameters >= target.sizes.num_parameters:
        return Ranked(
            other, None, f"not smaller than the target: {_billions(other.sizes)}, target {_billions(target.sizes)}"
        )
    limit = other.sizes.context_length
    if context and 0 < limit < context:
        return Ranked(other, None, f"context too short: trained for {limit:,} tokens, the workload has {context:,}")
    kind: PairKind = "same family" if target.architecture == other.architecture else "same vocabulary"
    short = 0 < limit < target.sizes.context_length
    ours, theirs = (s if as_stored else expanded(machine, s) for s in (target.sizes, other.sizes))
    prediction = predict_pair(machine, ours, theirs, kind)
    notes = [
        *(["not expected to pay off here"] if prediction.speedup < WORTH_IT else []),
        *([f"trained for {limit:,} tokens, does not help beyond that"] if short else []),
    ]
    return Ranked(other, prediction, note="; ".join(notes) or None)


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
