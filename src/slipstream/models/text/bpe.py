"""Encoders of the tokenizers library, built from plain vocabularies: byte-level BPE and SentencePiece BPE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from slipstream.errors import DamagedModelError
from slipstream.models.text.pretokenizers import PreTokenizer
from slipstream.models.text.vocabulary import Vocabulary

Merge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SpmPieces:
    """A SentencePiece BPE vocabulary: pieces with a higher score are merged earlier."""

    vocabulary: Vocabulary
    scores: Sequence[float]  # by id
    adds_space_prefix: bool
    unknown: str | None


def byte_level_encoder(vocabulary: Vocabulary, merges: list[Merge], pre: PreTokenizer, path: Path) -> Tokenizer:
    """A byte-level encoder that splits text into words by `pre`."""
    ids = _ids(vocabulary)
    model = _build(path, lambda: models.BPE(vocab=ids, merges=merges, ignore_merges=pre.whole_words_first))
    encoder = Tokenizer(model)
    if pre.composes:
        encoder.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    return _with_added_tokens(encoder, vocabulary)


def spm_encoder(pieces: SpmPieces, merges: list[Merge] | None, path: Path) -> Tokenizer:
    """An encoder that merges pieces by score over the whole text; unknown characters fall back to bytes."""
    ids = _ids(pieces.vocabulary)
    merges = merges if merges is not None else merges_by_score(pieces, ids)
    model = _build(
        path,
        lambda: models.BPE(vocab=ids, merges=merges, unk_token=pieces.unknown, fuse_unk=True, byte_fallback=True),
    )
    encoder = Tokenizer(model)
    prefix = [normalizers.Prepend("▁")] if pieces.adds_space_prefix else []
    encoder.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    return _with_added_tokens(encoder, pieces.vocabulary)


def merges_by_score(pieces: SpmPieces, ids: dict[str, int]) -> list[Merge]:
    """Every pair of pieces that forms a piece, best score first; for one piece the lower ids first."""
    found: list[tuple[float, int, int, int, Merge]] = []
    kept = pieces.vocabulary.special | pieces.vocabulary.verbatim
    for text, token_id in ids.items():
        if token_id in kept:
            continue
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                found.append((-pieces.scores[token_id], token_id, ids[left], ids[right], (left, right)))
    found.sort()
    return [entry[-1] for entry in found]


def split_merges(lines: Sequence[str], path: Path) -> list[Merge]:
    """Merge rules as in the files, "left right"."""
    merges: list[Merge] = []
    for line in lines:
        left, space, right = line.partition(" ")
        if not (left and space and right):
            raise DamagedModelError(
                f"{path} has the merge rule {line!r}; expected two tokens with a space between them."
            )
        merges.append((left, right))
    return merges


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    # If two strings are equal, text is encoded with the lower id.
    return {text: i for i, text in reversed(list(enumerate(vocabulary.strings))) if text is not None}


def _with_added_tokens(encoder: Tokenizer, vocabulary: Vocabulary) -> Tokenizer:
    added = sorted(vocabulary.special | vocabulary.verbatim)
    encoder.add_tokens(
        [
            AddedToken(text, normalized=False, special=token_id in vocabulary.special)
            for token_id in added
            if (text := vocabulary.strings[token_id])
        ]
    )
    return encoder


def _build(path: Path, make: Callable[[], models.Model]) -> models.Model:
    try:
        return make()
    except Exception as error:  # the library raises a bare Exception for a vocabulary that contradicts its merges
        raise DamagedModelError(f"{path} has a vocabulary that contradicts its merge rules: {error}") from error
