"""Differences for which no engine refuses a pair, but which lower acceptance."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.findings import Finding, rule
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.vocabularies.comparison import Pair

ENDS = rule(
    "vocabulary-ends",
    "note",
    "Target and draft begin or end texts with different tokens",
    "The draft was trained with a different first or last token. Its tokens at the beginning and the end of an answer "
    "may be rejected; nothing else changes.",
    "Nothing to do; to avoid it, pair base models with base models and chat models with chat models.",
)
CONTROL = rule(
    "vocabulary-control",
    "note",
    "A token is a control token in only one of the two models",
    "The ids agree, but one file marks these tokens as control tokens and the other as text. Engines use the target's "
    "file to hide control tokens from the answer; drafting is not affected.",
    "Nothing to do for speculation; if text is missing from answers, check the target's tokenizer files.",
)
SPLITTING = rule(
    "vocabulary-splitting",
    "note",
    "Target and draft split text into tokens differently",
    "Both have the same tokens but split text by different rules. The engine uses the target's rules. The draft then "
    "reads splits it was not trained on, so slightly fewer of its tokens are accepted.",
    "Check that both models are of the same family and were converted the same way. A GGUF made with an old llama.cpp "
    "may name the wrong pre-tokenizer: convert it again.",
)
TEMPLATE = rule(
    "vocabulary-template",
    "note",
    "Target and draft have different chat templates",
    "The engine formats conversations with the target's template. A draft trained on another template predicts the "
    "first tokens of a turn less well.",
    "Nothing to do; a chat model of the same family and version is the best draft.",
)


def notes(pair: Pair, *, with_ends: bool) -> Iterator[Finding]:
    """Notes on differences that no engine refuses. BOS, EOS and splitting are compared only if the vocabularies are
    equal.
    """
    comparison = pair.comparison
    ours, theirs = comparison.target, comparison.draft
    if comparison.same_tokens and with_ends and _ends(pair.target) != _ends(pair.draft):
        yield ENDS.finding(
            f"BOS: target {named(pair.target, ours.bos_id)}, added: {ours.add_bos}; "
            f"draft {named(pair.draft, theirs.bos_id)}, added: {theirs.add_bos}. "
            f"EOS: target {named(pair.target, ours.eos_id)}; draft {named(pair.draft, theirs.eos_id)}"
        )
    if comparison.special_differences:
        yield CONTROL.finding("; ".join(f"id {p.id} {p.target!r}" for p in comparison.special_differences))
    steps = {
        "normaliser": comparison.same_normaliser,
        "pre-tokenizer": comparison.same_pre_tokenizer,
        "merges": comparison.same_merges,
    }
    differing = [name for name, same in steps.items() if same is False]
    if comparison.same_tokens and differing:
        yield SPLITTING.finding(f"different: {', '.join(differing)}; sample texts give different ids")
    if comparison.same_tokens and comparison.same_chat_template is False:
        yield TEMPLATE.finding("both models have a chat template, and the templates differ")


def _ends(tokenizer: Tokenizer) -> tuple[int | None, bool, int | None]:
    return tokenizer.bos_id, tokenizer.add_bos, tokenizer.eos_id


def named(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "none" if token_id is None else f"{token_id} {tokenizer.token_text(token_id)!r}"
