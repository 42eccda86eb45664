"""Whether a draft's token ids mean the same as the target's, and what each engine makes of it.

Engines differ: llama.cpp compares texts, vLLM and transformers only sizes, SGLang both, ExLlama nothing. The rules here
are those of the engines' own start-up checks; what they leave unchecked is checked here.
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
MOSTLY_EQUAL = 0.9  # of all ids: drafts are still worth their cost, apart from the ids that differ
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
    "Target and draft share one vocabulary",
    "Every token id means the same in both models, so {engine} can check the draft's tokens as they are.",
    "Nothing to do.",
)
TYPE = rule(
    "vocabulary-type",
    "blocks",
    "Target and draft have tokenizers of different kinds",
    "llama.cpp refuses the pair with 'draft model vocab type must match target model to use speculation' (older builds "
    "run on without drafts, or translate token by token).",
    "Take a draft of the target's family: `slipstream pairs --target TARGET` lists those on this disk.",
)
SPECIAL = rule(
    "vocabulary-special",
    "blocks",
    "llama.cpp compares BOS, EOS and whether they are added",
    "llama.cpp compares the first and last tokens of a text before it drafts. {meaning}",
    "Give both models the target's value: {override}",
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
    "Token ids mean different texts in target and draft",
    "{engine} compares the token texts and refuses the pair: what the draft means by an id is another text to the "
    "target.",
    "Take a draft of the target's family (`slipstream pairs --target TARGET`){alternative}.",
)
UNCHECKED = rule(
    "vocabulary-unchecked",
    "blocks",
    "Token ids mean different texts, and the engine does not notice",
    "{engine} {check}, so it starts; but the draft's ids mean other texts to the target. Nearly every drafted token is "
    "rejected, and the server is slower than without a draft.",
    "Take a draft of the target's family (`slipstream pairs --target TARGET`){alternative}.",
)
FEW_DIFFER = rule(
    "vocabulary-few-differ",
    "slows",
    "A few token ids mean different texts",
    "{engine} {check}. Drafts are good except where these ids come up: each time, the draft breaks off there. Added "
    "chat tokens among them cost the most.",
    "Prefer a draft whose tokenizer has the same added tokens; the answers stay right either way.",
)
OUT_OF_RANGE = rule(
    "vocabulary-out-of-range",
    "blocks",
    "One model has token ids that the other has no row for",
    "{engine} passes ids from one model to the other unchecked. The first id past the end of the smaller embedding "
    "ends in 'index out of range' or a CUDA device-side assert.",
    "Take a draft of the target's family: `slipstream pairs --target TARGET` lists those on this disk.",
)
TRANSLATE = rule(
    "vocabulary-translate",
    "slows",
    "Slipstream has to translate between two vocabularies",
    "The token ids differ, so drafts are translated: {how}. The answers are the same; fewer drafted tokens are "
    "accepted than from a draft of the target's family.",
    "Use `--drafter translate` (chosen by itself where no drafter is given), or a draft of the target's family.",
)
UNREADABLE = rule(
    "vocabulary-unreadable",
    "blocks",
    "A tokenizer can't be read",
    "Without the {role}'s tokenizer nobody can say whether the pair fits.",
    "Copy tokenizer.json (or tokenizer.model) and tokenizer_config.json beside the weights, or fetch the model again.",
)


def check(
    target: Tokenizer, draft: Tokenizer, engine: str, target_size: int | None = None, draft_size: int | None = None
) -> list[Finding]:
    """What `engine` makes of the pair, worst first. A pair that fits gives the note vocabulary-same.

    `target_size` and `draft_size` are the embedding rows that the models' files state; the tokenizers' own sizes are
    taken where they are missing. Raises UsageError for an unknown engine.
    """
    engine = ALIASES.get(engine.lower(), engine.lower())
    if engine not in ENGINES:
        raise UsageError(f"No engine is called {engine!r}. Known are {', '.join(ENGINES)}.")
    comparison = compare(target, draft)
    rows = (target_size or comparison.target.rows, draft_size or comparison.draft.rows)
    pair = Pair(target, draft, comparison, *rows)
    findings = list(ENGINES[engine](pair))
    ids = {finding.id for finding in findings}
    if not blocks(findings) and ids <= {SPECIAL.id}:
        findings.append(SAME.finding(_sameness(pair), engine=engine))
    return worst_first([*findings, *notes(pair, with_ends=SPECIAL.id not in ids)])


def check_specs(target: str | Path, draft: str | Path, engine: str) -> list[Finding]:
    """Like `check`, for models on this disk. A tokenizer that can't be read is a finding too."""
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
    yield TRANSLATE.finding(f"{_differences(pair)}; the draft has {overlap:.0%} of the target's tokens", how=how)


def _llama_cpp(pair: Pair) -> Iterator[Finding]:
    ours, theirs = pair.comparison.target, pair.comparison.draft
    if ours.spelling != theirs.spelling:
        kinds = {"byte_level": "byte-level BPE (gpt2)", "spm": "SentencePiece (llama)"}
        yield TYPE.finding(f"target {kinds[ours.spelling]}, draft {kinds[theirs.spelling]}; {_differences(pair)}")
        return
    yield from _llama_cpp_ends(pair)
    difference = abs(pair.target_rows - pair.draft_rows)
    if difference > LLAMA_CPP_MAX_SIZE_DIFFERENCE:
        limit = f"and allows a difference of {LLAMA_CPP_MAX_SIZE_DIFFERENCE}"
        fix = "Take a draft of the target's family (`slipstream pairs --target TARGET`), or Slipstream itself."
        evidence = f"{pair.sizes}: {difference:,} apart; {_differences(pair)}"
        yield SIZE.finding(evidence, engine="llama.cpp", limit=limit, meaning=_size_meaning(pair), fix=fix)
        return
    differing = list(_exact_differences(pair, LLAMA_CPP_FIRST_CHECKED_ID))
    if differing:
        yield TOKENS.finding(_listed(differing), engine="llama.cpp", alternative=", or Slipstream with translate")


def _llama_cpp_ends(pair: Pair) -> Iterator[Finding]:
    """llama.cpp looks at an id only where the token is added; builds before that looked at the ids always."""
    ours, theirs = pair.comparison.target, pair.comparison.draft
    if ours.add_bos != theirs.add_bos:
        override = f"--override-kv tokenizer.ggml.add_bos_token=bool:{str(ours.add_bos).lower()}"
        evidence = f"BOS is added by the target: {ours.add_bos}, by the draft: {theirs.add_bos}"
        yield SPECIAL.finding(evidence, meaning="They differ in whether BOS is added: refused.", override=override)
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
            else "Old builds refuse the pair, or silently translate tokens; "
            "builds that look only at tokens that are added take it.",
            override=f"--override-kv tokenizer.ggml.{name}_token_id=int:{-1 if our_id is None else our_id}",
        )


def _vllm(pair: Pair) -> Iterator[Finding]:
    if not pair.same_rows:
        yield SIZE.finding(
            f"{pair.sizes}; {_differences(pair)}",
            engine="vLLM",
            limit="which must be equal",
            meaning=_size_meaning(pair),
            fix='Set "use_heterogeneous_vocab": true in --speculative-config (vLLM versions of mid-2026 and later; '
            "draft_model only, drafts are greedy), or take a draft with the target's vocab_size, "
            "or an engine that ignores padding: llama.cpp, Slipstream.",
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
            fix="Take a draft with the target's vocab_size, or an EAGLE head for the target, "
            "or an engine that ignores padding: llama.cpp, Slipstream.",
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
        yield OUT_OF_RANGE.finding(f"{pair.sizes}, but token ids go up to {highest - 1:,}", engine="ExLlama")
    yield from _unchecked(pair, "ExLlama", "makes no check of its own", ", or n-gram drafting without a draft model")


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
    """Ids that both models have and spell differently, by the letter: the names of reserved tokens count too."""
    end = min(pair.target_rows, pair.draft_rows)
    return (p for p in pairs(pair.target, pair.draft) if first <= p.id < end and p.target != p.draft)


def _size_meaning(pair: Pair) -> str:
    if pair.comparison.same_tokens:
        return "The tokens themselves are equal id by id: only the padding at the end differs."
    return "The tokens differ too, so it is no matter of padding."


def _sameness(pair: Pair) -> str:
    comparison = pair.comparison
    if not comparison.same_tokens:  # llama.cpp does not look at the first ids
        return f"{comparison.num_equal:,} tokens are the same id by id; {_differences(pair)}"
    same = f"same {comparison.num_equal:,} tokens id by id"
    return same if pair.same_rows else f"{same}; {pair.sizes}: the difference is padding, which is never said"


def _differences(pair: Pair) -> str:
    comparison = pair.comparison
    if comparison.same_tokens:
        return f"same {comparison.num_equal:,} tokens id by id"
    return f"{comparison.num_differing:,} ids differ: {'; '.join(map(shown_pair, comparison.first_differences))}"


def _listed(differing: list[TokenPair]) -> str:
    return f"{len(differing):,} ids differ: {'; '.join(map(shown_pair, differing[:MAX_SHOWN]))}"
