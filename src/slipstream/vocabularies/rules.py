"""What engines make of two vocabularies: the rules, and what an engine's own check builds on.

Engines differ: llama.cpp compares token texts, vLLM and transformers only sizes, SGLang both, ExLlama nothing. The
check of each is in its folder; it follows the engine's own start-up check and adds what that overlooks.
"""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.findings import Finding, rule
from slipstream.vocabularies.comparison import MAX_SHOWN, Pair, TokenPair, pairs, shown_pair

MOSTLY_EQUAL = 0.9  # share of all ids; above it drafts still pay off, except at the ids that differ

SAME = rule(
    "vocabulary-same",
    "note",
    "Target and draft have the same vocabulary",
    "Every token id means the same in both models, so {engine} can verify the draft's tokens without translating them.",
    "Nothing to do.",
)
TYPE = rule(
    "vocabulary-type",
    "blocks",
    "Target and draft have different tokenizer types",
    "llama.cpp refuses the pair with 'draft model vocab type must match target model to use speculation' (older "
    "builds continue without speculation, or translate token by token).",
    "Use a draft model of the target's family: `slipstream pairs --target TARGET` lists those on this disk.",
)
SPECIAL = rule(
    "vocabulary-special",
    "blocks",
    "BOS or EOS tokens differ between target and draft (llama.cpp)",
    "Before drafting, llama.cpp compares the BOS and EOS tokens of both models and whether they are added. {meaning}",
    "{fix}",
)
SIZE = rule(
    "vocabulary-size",
    "blocks",
    "The vocabulary sizes differ by more than the engine allows",
    "{engine} compares the number of embedding rows (vocab_size in config.json, padding included), {limit}. {meaning}",
    "{fix}",
)
TOKENS = rule(
    "vocabulary-tokens",
    "blocks",
    "Token ids stand for different text in target and draft",
    "{engine} compares the token texts and refuses the pair: the same id stands for different text in the two models.",
    "Use a draft model of the target's family (`slipstream pairs --target TARGET`){alternative}.",
)
UNCHECKED = rule(
    "vocabulary-unchecked",
    "blocks",
    "Token ids stand for different text, and the engine does not check this",
    "{engine} {check}, so it starts, but the draft's token ids stand for other text in the target. Nearly every "
    "drafted token is rejected, and the server is slower than without a draft.",
    "Use a draft model of the target's family (`slipstream pairs --target TARGET`){alternative}.",
)
FEW_DIFFER = rule(
    "vocabulary-few-differ",
    "slows",
    "A few token ids stand for different text",
    "{engine} {check}. Drafts work except at these ids: wherever one of them occurs, the draft is rejected from there "
    "on. Added chat tokens among them have the largest effect.",
    "Prefer a draft model whose tokenizer has the same added tokens. The answers are correct either way.",
)
OUT_OF_RANGE = rule(
    "vocabulary-out-of-range",
    "blocks",
    "One model has token ids that are outside the other's embedding",
    "{engine} passes ids from one model to the other without a check. The first id past the end of the smaller "
    "embedding fails with 'index out of range' or a CUDA device-side assert.",
    "Use a draft model of the target's family: `slipstream pairs --target TARGET` lists those on this disk.",
)
TRANSLATE = rule(
    "vocabulary-translate",
    "slows",
    "Slipstream has to translate between two vocabularies",
    "The token ids differ, so drafts are translated: {how}. The answers are the same, but fewer drafted tokens are "
    "accepted than with a draft model of the target's family.",
    "Use `--drafter translate` (the default for such a pair), or a draft model of the target's family.",
)
UNREADABLE = rule(
    "vocabulary-unreadable",
    "blocks",
    "A tokenizer can't be read",
    "Without the {role}'s tokenizer the doctor can't tell whether the two vocabularies match.",
    "Copy tokenizer.json (or tokenizer.model) and tokenizer_config.json into the folder of the weights, or download "
    "the model again.",
)


def unequal_sizes(pair: Pair, engine: str, limit: str, fix: str, apart: str = "") -> Finding:
    """`limit`: what the engine allows. `apart`: by how much they differ, where that counts."""
    meaning = "The tokens differ too, so padding is not the only difference."
    if pair.comparison.same_tokens:
        meaning = "All tokens have the same ids; only the padding at the end differs."
    return SIZE.finding(
        f"{pair.sizes}{apart}; {differences(pair)}", engine=engine, limit=limit, meaning=meaning, fix=fix
    )


def unchecked(pair: Pair, engine: str, what_it_does: str, alternative: str) -> Iterator[Finding]:
    comparison = pair.comparison
    if comparison.same_tokens:
        return
    if comparison.share_equal >= MOSTLY_EQUAL:
        yield FEW_DIFFER.finding(differences(pair), engine=engine, check=what_it_does)
    else:
        yield UNCHECKED.finding(differences(pair), engine=engine, check=what_it_does, alternative=alternative)


def exact_differences(pair: Pair, first: int) -> Iterator[TokenPair]:
    """Ids that exist in both models with different text. This is an exact comparison: the names of reserved tokens
    count too.
    """
    end = min(pair.target_rows, pair.draft_rows)
    return (p for p in pairs(pair.target, pair.draft) if first <= p.id < end and p.target != p.draft)


def differences(pair: Pair) -> str:
    comparison = pair.comparison
    if comparison.same_tokens:
        return f"all {comparison.num_equal:,} tokens have the same ids"
    return f"{comparison.num_differing:,} ids differ: {'; '.join(map(shown_pair, comparison.first_differences))}"


def listed(differing: list[TokenPair]) -> str:
    return f"{len(differing):,} ids differ: {'; '.join(map(shown_pair, differing[:MAX_SHOWN]))}"
