"""Comparison: two vocabularies id by id, and the other differences between two tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from slipstream.drafters.vocabulary import SharedTokens
from slipstream.model_files.local_models import local_place
from slipstream.models.files import per_file
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.models.text.vocabulary import Spelling, is_filler

MAX_SHOWN = 5  # differing ids to list
# Text that tokenizers split differently: digits, contractions, spaces, case, combining marks, line ends.
PROBES = (
    "The year 2024 had 8784 hours, didn't it?",
    "  def f(x):\n\t\treturn x  # naïve e\u0301, HTTPServer\r\n\r\n",
    "日本語 🎉 ٣٤٥ Ⅻ \u00a0\u3000 WE'LL see...",
)


@dataclass(frozen=True, slots=True)
class TokenPair:
    """One id and its token text in both vocabularies, as in their files; None: no token."""

    id: int
    target: str | None
    draft: str | None


@dataclass(frozen=True, slots=True)
class Side:
    """The properties of one tokenizer."""

    rows: int  # ids in its list, padding included
    num_tokens: int  # number of ids up to the last real token
    spelling: Spelling
    bos_id: int | None
    add_bos: bool
    eos_id: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    target: Side
    draft: Side
    num_equal: int  # ids that are the same token in both
    num_differing: int  # ids that are not; padding counts as equal to padding and to a missing row
    first_differences: tuple[TokenPair, ...]
    special_differences: tuple[TokenPair, ...]  # same text, but a control token in only one of the two
    same_normaliser: bool | None  # None: written differently, but no difference found
    same_pre_tokenizer: bool | None
    same_merges: bool | None
    same_chat_template: bool | None  # None: at least one has no template
    overlap: float  # share of the target's tokens that the draft's vocabulary has

    @property
    def same_tokens(self) -> bool:
        return self.num_differing == 0

    @property
    def share_equal(self) -> float:
        """Share of ids that are the same token in both."""
        return self.num_equal / max(self.num_equal + self.num_differing, 1)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both tokenizers, their comparison, and the embedding rows of both models."""

    target: Tokenizer
    draft: Tokenizer
    comparison: Comparison
    target_rows: int
    draft_rows: int

    @property
    def sizes(self) -> str:
        return f"target {self.target_rows:,} rows, draft {self.draft_rows:,}"

    @property
    def same_rows(self) -> bool:
        return self.target_rows == self.draft_rows


def load_tokenizer(spec: str | Path) -> Tokenizer:
    """The tokenizer of a model on this disk; the weights may be missing. Raises ModelError subclasses."""
    path = local_place(spec).path
    return _load(path.parent if path.suffix == ".safetensors" else path)


@per_file
def _load(path: Path) -> Tokenizer:
    if path.is_dir():
        from slipstream.models.text.tokenizer_hf import tokenizer_from_folder

        return tokenizer_from_folder(path)
    from slipstream.models.gguf.header import read_header
    from slipstream.models.text.tokenizer_gguf import tokenizer_from_metadata

    return tokenizer_from_metadata(read_header(path).metadata, path)


def compare(target: Tokenizer, draft: Tokenizer) -> Comparison:
    """Compares two tokenizers. Takes about a second for the largest vocabularies."""
    equal, differing = 0, []
    for pair in pairs(target, draft):
        if same_token(pair):
            equal += pair.target is not None
        else:
            differing.append(pair)
    agree = _cut_alike(target, draft) if not differing else None
    ours, theirs = _steps(target), _steps(draft)
    return Comparison(
        target=_side(target),
        draft=_side(draft),
        num_equal=equal,
        num_differing=len(differing),
        first_differences=tuple(differing[:MAX_SHOWN]),
        special_differences=tuple(islice(_special_differences(target, draft), MAX_SHOWN)),
        same_normaliser=_same_step(ours["normalizer"], theirs["normalizer"], agree),
        same_pre_tokenizer=_same_step(ours["pre_tokenizer"], theirs["pre_tokenizer"], agree),
        same_merges=_same_step(ours["merges"], theirs["merges"], agree if not differing else False),
        same_chat_template=_same_template(target, draft),
        overlap=1.0 if not differing else SharedTokens(draft, target, target.vocab_size).overlap,
    )


def pairs(target: Tokenizer, draft: Tokenizer) -> Iterator[TokenPair]:
    """All ids of both, in order."""
    both = zip_longest(target.vocabulary.strings, draft.vocabulary.strings)
    return (TokenPair(i, t, d) for i, (t, d) in enumerate(both))


def same_token(pair: TokenPair) -> bool:
    """Whether an id means the same in both. Padding and reserved rows are never generated, so their names don't
    matter.
    """
    return pair.target == pair.draft or (is_filler(pair.target) and is_filler(pair.draft))


def _side(tokenizer: Tokenizer) -> Side:
    vocabulary = tokenizer.vocabulary
    return Side(
        rows=len(vocabulary.strings),
        num_tokens=vocabulary.num_tokens,
        spelling=vocabulary.spelling,
        bos_id=tokenizer.bos_id,
        add_bos=tokenizer.add_bos,
        eos_id=tokenizer.eos_id,
    )


def _special_differences(target: Tokenizer, draft: Tokenizer) -> Iterator[TokenPair]:
    """Tokens that are control tokens in one file and text in the other."""
    ours, theirs = target.vocabulary, draft.vocabulary
    for token_id in sorted(ours.special ^ theirs.special):
        if token_id >= min(len(ours.strings), len(theirs.strings)):
            return
        text = ours.strings[token_id]
        if text == theirs.strings[token_id] and not is_filler(text):
            yield TokenPair(token_id, text, text)


def _steps(tokenizer: Tokenizer) -> dict[str, Any]:
    """How text is split into tokens, as the tokenizers library describes it."""
    state = json.loads(tokenizer._encoder.to_str())
    return {
        "normalizer": state.get("normalizer"),
        "pre_tokenizer": state.get("pre_tokenizer"),
        "merges": state.get("model", {}).get("merges"),
    }


def _same_step(ours: Any, theirs: Any, cut_alike: bool | None) -> bool | None:
    """Equal descriptions are the same step. Unequal ones may be too: GGUF and tokenizer.json write the same step
    differently.
    """
    if ours == theirs:
        return True
    return False if cut_alike is False else None


def _cut_alike(target: Tokenizer, draft: Tokenizer) -> bool:
    return all(target.encode(text) == draft.encode(text) for text in PROBES)


def _same_template(target: Tokenizer, draft: Tokenizer) -> bool | None:
    ours, theirs = target.chat_template, draft.chat_template
    return None if ours is None or theirs is None else ours.strip() == theirs.strip()


def shown(text: str | None) -> str:
    """A token's text for display."""
    if text is None:
        return "no token"
    return repr(text if len(text) <= 30 else text[:27] + "…")


def shown_pair(pair: TokenPair) -> str:
    return f"id {pair.id}: target {shown(pair.target)}, draft {shown(pair.draft)}"
