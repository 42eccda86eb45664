"""What no engine refuses a pair for, but what costs some accepted tokens."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.findings import Finding, rule
from slipstream.models.tokenizer import Tokenizer
from slipstream.vocabularies.comparison import Pair

ENDS = rule(
    "vocabulary-ends",
    "note",
    "Target and draft begin or end texts with different tokens",
    "The draft was trained with another first or last token. Its guesses at the beginning and the end of an answer may "
    "be rejected; nothing else changes.",
    "Nothing to do; to avoid it, pair base models with base models and chat models with chat models.",
)
CONTROL = rule(
    "vocabulary-control",
    "note",
    "A token is a control token in only one of the two",
    "The ids agree, but one file marks these tokens as control tokens and the other as text. Engines hide control "
    "tokens from the answer by the target's file; drafting is not touched.",
    "Nothing to do for speculation; if text is missing from answers, check the target's tokenizer files.",
)
SPLITTING = rule(
    "vocabulary-splitting",
    "note",
    "Target and draft cut text into tokens differently",
    "Both have the same tokens, but cut text into them by different rules. The engine uses the target's; the draft "
    "sees cuts it was not trained on, so somewhat fewer of its tokens are accepted.",
    "Check that both come from one family and one conversion; a GGUF made with an old llama.cpp may name the wrong "
    "pre-tokenizer: convert it again.",
)
TEMPLATE = rule(
    "vocabulary-template",
    "note",
    "Target and draft have different chat templates",
    "The engine writes conversations with the target's template. A draft trained on another layout guesses the first "
    "tokens of a turn less well.",
    "Nothing to do; a chat draft of the same family and version fits best.",
)


def notes(pair: Pair, *, with_ends: bool) -> Iterator[Finding]:
    """What no engine refuses. Ends and cuts mean little between vocabularies that differ anyway."""
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
        yield SPLITTING.finding(f"different: {', '.join(differing)}; sample texts become different ids")
    if comparison.same_tokens and comparison.same_chat_template is False:
        yield TEMPLATE.finding("both models have a chat template, and the two are not the same text")


def _ends(tokenizer: Tokenizer) -> tuple[int | None, bool, int | None]:
    return tokenizer.bos_id, tokenizer.add_bos, tokenizer.eos_id


def named(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "none" if token_id is None else f"{token_id} {tokenizer.token_text(token_id)!r}"
