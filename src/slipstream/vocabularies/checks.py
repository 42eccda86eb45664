"""Checks whether token ids mean the same in draft and target, and how each engine handles the differences.

Engines differ: llama.cpp compares token texts, vLLM and transformers only sizes, SGLang both, ExLlama nothing. The
rules here follow the engines' own start-up checks and add what the engines do not check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from slipstream.drafters import TranslateOptions
from slipstream.errors import ModelError, UsageError
from slipstream.findings import Finding, blocks, rule, worst_first
from slipstream.models.tokenizer import Tokenizer
from slipstream.vocabularies.comparison import (
    MAX_SHOWN,
    Comparison,
    Pair,
    TokenPair,
    compare,
    load_tokenizer,
    pairs,
    same_token,
    shown_pair,
)
from slipstream.vocabularies.notes import named, notes

__all__ = ["ENGINES", "Comparison", "TokenPair", "check", "check_specs", "compare", "load_tokenizer", "same_token"]

LLAMA_CPP_MAX_SIZE_DIFFERENCE = 128
LLAMA_CPP_FIRST_CHECKED_ID = 5
MOSTLY_EQUAL = 0.9  # share of all ids; above it drafts still pay off, except at the ids that differ
ALIASES = {
    "llama-server": "llama.cpp",
    "llamacpp": "llama.cpp",
    "ollama": "llama.cpp",
    "tabbyapi": "exllama",
    "exllamav2": "exllama",
    "exllamav3": "exllama",
}

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
    "Set the target's value for both models: {override}",
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


def check(
    target: Tokenizer, draft: Tokenizer, engine: str, target_size: int | None = None, draft_size: int | None = None
) -> list[Finding]:
    """The findings of `engine` for the pair, worst first. A compatible pair gives the note vocabulary-same.

    `target_size` and `draft_size` are the numbers of embedding rows in the models' files; if missing, the tokenizers'
    own sizes are used. Raises UsageError for an unknown engine.
    """
    engine = ALIASES.get(engine.lower(), engine.lower())
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}; expected one of {', '.join(ENGINES)}")
    comparison = compare(target, draft)
    rows = (target_size or comparison.target.rows, draft_size or comparison.draft.rows)
    pair = Pair(target, draft, comparison, *rows)
    findings = list(ENGINES[engine](pair))
    ids = {finding.id for finding in findings}
    if not blocks(findings) and ids <= {SPECIAL.id}:
        findings.append(SAME.finding(_sameness(pair), engine=engine))
    return worst_first([*findings, *notes(pair, with_ends=SPECIAL.id not in ids)])


def check_specs(target: str | Path, draft: str | Path, engine: str) -> list[Finding]:
    """Like `check`, for models on this disk. An unreadable tokenizer is a finding too."""
    from slipstream.model_files.weights import describe

    read, findings = [], []
    for role, spec in (("target", target), ("draft", draft)):
        try:
            read.append((load_tokenizer(spec), describe(spec).vocab_size))
        except ModelError as error:
            findings.append(UNREADABLE.finding(str(error), role=role))
    if findings:
        return findings
    (ours, our_size), (theirs, their_size) = read
    return check(ours, theirs, engine, our_size, their_size)


def _slipstream(pair: Pair) -> Iterator[Finding]:
    if pair.comparison.same_tokens:
        return
    overlap = pair.comparison.overlap
    how = (
        "by shared tokens" if overlap >= TranslateOptions().min_overlap else "as text, since too few tokens are shared"
    )
    yield TRANSLATE.finding(
        f"{_differences(pair)}; {overlap:.0%} of the target's tokens are also in the draft's vocabulary", how=how
    )


def _llama_cpp(pair: Pair) -> Iterator[Finding]:
    ours, theirs = pair.comparison.target, pair.comparison.draft
    if ours.spelling != theirs.spelling:
        kinds = {"byte_level": "byte-level BPE (gpt2)", "spm": "SentencePiece (llama)"}
        yield TYPE.finding(f"target {kinds[ours.spelling]}, draft {kinds[theirs.spelling]}; {_differences(pair)}")
        return
    yield from _llama_cpp_ends(pair)
    difference = abs(pair.target_rows - pair.draft_rows)
    if difference > LLAMA_CPP_MAX_SIZE_DIFFERENCE:
        limit = f"and allows a difference of at most {LLAMA_CPP_MAX_SIZE_DIFFERENCE}"
        fix = (
            "Use a draft model of the target's family (`slipstream pairs --target TARGET`), or run the pair with "
            "Slipstream."
        )
        evidence = f"{pair.sizes}: {difference:,} apart; {_differences(pair)}"
        yield SIZE.finding(evidence, engine="llama.cpp", limit=limit, meaning=_size_meaning(pair), fix=fix)
        return
    differing = list(_exact_differences(pair, LLAMA_CPP_FIRST_CHECKED_ID))
    if differing:
        yield TOKENS.finding(
            _listed(differing),
            engine="llama.cpp",
            alternative=", or run the pair with Slipstream's `--drafter translate`",
        )


def _llama_cpp_ends(pair: Pair) -> Iterator[Finding]:
    """llama.cpp compares an id only if the token is added to texts; older builds always compare the ids."""
    ours, theirs = pair.comparison.target, pair.comparison.draft
    if ours.add_bos != theirs.add_bos:
        override = f"--override-kv tokenizer.ggml.add_bos_token=bool:{str(ours.add_bos).lower()}"
        evidence = f"BOS added to texts: target {ours.add_bos}, draft {theirs.add_bos}"
        yield SPECIAL.finding(evidence, meaning="Only one of them adds BOS, so the pair is refused.", override=override)
    for name, our_id, their_id, added in (
        ("bos", ours.bos_id, theirs.bos_id, ours.add_bos and theirs.add_bos),
        ("eos", ours.eos_id, theirs.eos_id, False),
    ):
        if our_id == their_id:
            continue
        yield SPECIAL.finding(
            f"{name.upper()}: target {named(pair.target, our_id)}, draft {named(pair.draft, their_id)}",
            "blocks" if added else "slows",
            meaning="The pair is refused."
            if added
            else "Older builds refuse the pair or silently translate tokens. Newer builds compare only tokens that are "
            "added to texts, and accept the pair.",
            override=f"--override-kv tokenizer.ggml.{name}_token_id=int:{-1 if our_id is None else our_id}",
        )


def _vllm(pair: Pair) -> Iterator[Finding]:
    if not pair.same_rows:
        yield SIZE.finding(
            f"{pair.sizes}; {_differences(pair)}",
            engine="vLLM",
            limit="which must be equal",
            meaning=_size_meaning(pair),
            fix='Set "use_heterogeneous_vocab": true in --speculative-config (vLLM from mid-2026 on; only for '
            "draft_model, with greedy drafts), or use a draft model with the target's vocab_size, or an engine "
            "that ignores padding: llama.cpp, Slipstream.",
        )
    else:
        alternative = ', or set "use_heterogeneous_vocab": true in --speculative-config'
        yield from _unchecked(pair, "vLLM", "compares only sizes", alternative)


def _sglang(pair: Pair) -> Iterator[Finding]:
    if not pair.same_rows:
        yield SIZE.finding(
            f"{pair.sizes}; {_differences(pair)}",
            engine="SGLang",
            limit="which must be equal in STANDALONE mode (versions before mid-2026 start without a check)",
            meaning=_size_meaning(pair),
            fix="Use a draft model with the target's vocab_size, or an EAGLE head for the target, or an engine that "
            "ignores padding: llama.cpp, Slipstream.",
        )
    elif differing := list(_exact_differences(pair, 0)):
        yield TOKENS.finding(_listed(differing), engine="SGLang", alternative=", or an EAGLE head for the target")


def _transformers(pair: Pair) -> Iterator[Finding]:
    if not pair.same_rows:
        yield SIZE.finding(
            f"{pair.sizes}; {_differences(pair)}",
            engine="transformers",
            limit="which must be equal unless both tokenizers are given",
            meaning=_size_meaning(pair),
            fix="Pass both tokenizers: generate(..., assistant_model=draft, tokenizer=target_tokenizer, "
            "assistant_tokenizer=draft_tokenizer). Drafts are then translated.",
        )
    else:
        yield from _unchecked(pair, "transformers", "compares only sizes (and refuses assistant_tokenizer here)", "")


def _exllama(pair: Pair) -> Iterator[Finding]:
    highest = max(pair.comparison.target.num_tokens, pair.comparison.draft.num_tokens)
    if highest > min(pair.target_rows, pair.draft_rows):
        yield OUT_OF_RANGE.finding(f"{pair.sizes}, but the highest token id is {highest - 1:,}", engine="ExLlama")
    yield from _unchecked(
        pair, "ExLlama", "does not compare vocabularies", ", or n-gram drafting without a draft model"
    )


ENGINES: dict[str, Callable[[Pair], Iterator[Finding]]] = {
    "slipstream": _slipstream,
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
    "sglang": _sglang,
    "transformers": _transformers,
    "exllama": _exllama,
}


def _unchecked(pair: Pair, engine: str, what_it_does: str, alternative: str) -> Iterator[Finding]:
    comparison = pair.comparison
    if comparison.same_tokens:
        return
    if comparison.share_equal >= MOSTLY_EQUAL:
        yield FEW_DIFFER.finding(_differences(pair), engine=engine, check=what_it_does)
    else:
        yield UNCHECKED.finding(_differences(pair), engine=engine, check=what_it_does, alternative=alternative)


def _exact_differences(pair: Pair, first: int) -> Iterator[TokenPair]:
    """Ids that exist in both models with different text. This is an exact comparison: the names of reserved tokens
    count too.
    """
    end = min(pair.target_rows, pair.draft_rows)
    return (p for p in pairs(pair.target, pair.draft) if first <= p.id < end and p.target != p.draft)


def _size_meaning(pair: Pair) -> str:
    if pair.comparison.same_tokens:
        return "All tokens have the same ids; only the padding at the end differs."
    return "The tokens differ too, so padding is not the only difference."


def _sameness(pair: Pair) -> str:
    comparison = pair.comparison
    if not comparison.same_tokens:  # llama.cpp does not compare the first ids
        return f"{comparison.num_equal:,} ids are the same token in both; {_differences(pair)}"
    same = f"all {comparison.num_equal:,} tokens have the same ids"
    return same if pair.same_rows else f"{same}; {pair.sizes}: the difference is padding ids, which are never generated"


def _differences(pair: Pair) -> str:
    comparison = pair.comparison
    if comparison.same_tokens:
        return f"all {comparison.num_equal:,} tokens have the same ids"
    return f"{comparison.num_differing:,} ids differ: {'; '.join(map(shown_pair, comparison.first_differences))}"


def _listed(differing: list[TokenPair]) -> str:
    return f"{len(differing):,} ids differ: {'; '.join(map(shown_pair, differing[:MAX_SHOWN]))}"
