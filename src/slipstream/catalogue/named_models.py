"""Models that are not on this machine: what their names say of their vocabularies. A hint, since files decide."""

from __future__ import annotations

import re

from slipstream.catalogue.families import FAMILIES, Family
from slipstream.findings import Finding, rule

SAME = rule(
    "vocabulary-by-name",
    "note",
    "By their names, target and draft share a vocabulary",
    "By their names both models are of the family {family} ({size} tokens), whose models share one vocabulary. A "
    "different tokenizer is then not the cause of a failure.{note}",
    "To be sure, compare the files: slipstream doctor --target FILE --draft FILE on the machine that has them.",
)
DIFFERENT = rule(
    "vocabulary-by-name-differs",
    "blocks",
    "By their names, target and draft have different vocabularies",
    "By its name the target is of the family {target} and the draft of {draft}. Their token ids mean different texts, "
    "so drafts would be refused or never accepted.",
    "{fix} Slipstream can translate between vocabularies, with lower acceptance: --drafter translate.",
)
# Parts of names, the first that matches decides, and the families of catalogue/families.json.
_PARTS = (
    (r"code-?llama.*34b", "Llama 2"),
    (r"code-?llama", "CodeLlama"),
    (r"tiny-?llama|miqu|sheared-llama|llama-?(?:68|160)m|llama-?2(?![\d.])", "Llama 2"),
    (r"r1-distill-qwen", "DeepSeek R1 distilled on Qwen2.5"),
    (r"llama-?3(?:\.[0-3])?(?![\d.])", "Llama 3.x"),
    (r"mixtral|mistral-7b.*v0\.[12]", "Mistral v0.1–v0.2, Mixtral"),
    (r"mistral-7b.*v0\.3|codestral-22b|mistral-large", "Mistral v0.3, Large, Codestral"),
    (r"qwen-?2\.5", "Qwen2.5"),
    (r"qwen-?3(?![\d.])", "Qwen3"),
    (r"gemma-?2(?![\d.])", "Gemma 2"),
    (r"gemma-?3(?![\d.n])", "Gemma 3"),
    (r"smollm-?2", "SmolLM2"),
)
_BILLIONS = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d+)?)b(?![a-z])")
_MAX_DRAFTS = 3  # to name
_LEAST_SHARE = 0.01  # of the target's size: smaller drafts are seldom right


def family_by_name(name: str) -> Family | None:
    """None if the name says nothing, as that of a merge of several models may."""
    found = next((family for part, family in _PARTS if re.search(part, name.lower())), None)
    return next((family for family in FAMILIES if family.name == found), None)


def check_names(target: str, draft: str) -> list[Finding]:
    """Whether two models can share a vocabulary, by their names. Empty if the names do not say it."""
    ours, theirs = family_by_name(target), family_by_name(draft)
    if ours is None or theirs is None:
        return []
    evidence = f"target {target}: {_shown(ours)}; draft {draft}: {_shown(theirs)}"
    if ours is theirs:
        return [SAME.finding(evidence, family=ours.name, size=_sizes(ours), note=f" {ours.note}" if ours.note else "")]
    return [DIFFERENT.finding(evidence, target=ours.name, draft=theirs.name, fix=_drafts(target, ours))]


def different_names(target: object, draft: object) -> list[Finding]:
    """Of a configuration: the finding that its models have different vocabularies, if their names say it."""
    if not isinstance(target, str) or not isinstance(draft, str):
        return []
    return [finding for finding in check_names(target, draft) if finding.id == DIFFERENT.id]


def _drafts(target: str, family: Family) -> str:
    size = _BILLIONS.search(target.lower())
    members = family.drafts_for(float(size[1])) if size else []
    large = [member for member in members if size and member.params_b >= _LEAST_SHARE * float(size[1])]
    names = ", ".join(member.repo for member in (large or members[-1:])[:_MAX_DRAFTS])
    return f"Models with the target's vocabulary: {names}." if names else "Draft without a model (n-grams)."


def _shown(family: Family) -> str:
    return f"{family.name}, {_sizes(family)} tokens"


def _sizes(family: Family) -> str:
    return " or ".join(f"{size:,}" for size in family.vocab_sizes)
