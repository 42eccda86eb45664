"""Checks whether token ids mean the same in draft and target, as an engine sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from slipstream.errors import ModelError
from slipstream.findings import Finding, blocks, worst_first
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.vocabularies.comparison import Pair, compare, load_tokenizer
from slipstream.vocabularies.notes import notes
from slipstream.vocabularies.rules import SAME, SPECIAL, UNREADABLE, differences


class VocabularyUser(Protocol):
    """An engine: its name in texts, and what its own check finds in a pair."""

    @property
    def title(self) -> str: ...

    @property
    def check_vocabulary(self) -> Callable[[Pair], Iterator[Finding]]: ...


def check(
    target: Tokenizer,
    draft: Tokenizer,
    engine: VocabularyUser,
    target_size: int | None = None,
    draft_size: int | None = None,
) -> list[Finding]:
    """The findings of `engine` for the pair, worst first. A compatible pair gives the note vocabulary-same.

    `target_size` and `draft_size` are the numbers of embedding rows in the models' files; if missing, the tokenizers'
    own sizes are used.
    """
    comparison = compare(target, draft)
    rows = (target_size or comparison.target.rows, draft_size or comparison.draft.rows)
    pair = Pair(target, draft, comparison, *rows)
    findings = list(engine.check_vocabulary(pair))
    ids = {finding.id for finding in findings}
    if not blocks(findings) and ids <= {SPECIAL.id}:
        findings.append(SAME.finding(_sameness(pair), engine=engine.title))
    return worst_first([*findings, *notes(pair, with_ends=SPECIAL.id not in ids)])


def check_specs(target: str | Path, draft: str | Path, engine: VocabularyUser) -> list[Finding]:
    """Like `check`, for models on this disk. An unreadable tokenizer is a finding too."""
    from slipstream.model_files.model_facts import describe

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


def _sameness(pair: Pair) -> str:
    comparison = pair.comparison
    if not comparison.same_tokens:  # llama.cpp does not compare the first ids
        return f"{comparison.num_equal:,} ids are the same token in both; {differences(pair)}"
    same = f"all {comparison.num_equal:,} tokens have the same ids"
    return same if pair.same_rows else f"{same}; {pair.sizes}: the difference is padding ids, which are never generated"
