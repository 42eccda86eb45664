"""GGUF metadata -> Tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.files import damage_in
from slipstream.models.text.bpe import SpmPieces, byte_level_encoder, split_merges, spm_encoder
from slipstream.models.text.pretokenizers import pre_tokenizer_named
from slipstream.models.text.tokenizer import Tokenizer, TokenizerSettings
from slipstream.models.text.vocabulary import Spelling, Vocabulary

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
END_KEYS = ("eot_token_id", "eom_token_id")


def tokenizer_from_metadata(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    """Raises DamagedModelError, or UnsupportedModelError for an unknown kind of tokenizer."""
    with damage_in(path, "tokenizer"):
        return _tokenizer_from_metadata(metadata, path)


def _tokenizer_from_metadata(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level_tokenizer(metadata, path)
    if kind == "llama":
        return _spm_tokenizer(metadata, path)
    raise UnsupportedModelError(
        f"{path} has a tokenizer of type {kind!r}; gpt2 (byte-level BPE) and llama (SentencePiece) are supported. Use "
        "the llama.cpp backend or another engine for this model."
    )


def _byte_level_tokenizer(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    vocabulary = _vocabulary(metadata, "byte_level", path)
    pre = pre_tokenizer_named(str(metadata.get("tokenizer.ggml.pre", "default")), path)
    merges = split_merges(_strings(metadata, "merges", path), path)
    encoder = byte_level_encoder(vocabulary, merges, pre, path)
    settings = _settings(metadata, vocabulary, path, adds_bos=pre.adds_bos, strips_leading_space=False)
    return Tokenizer(encoder, vocabulary, settings)


def _spm_tokenizer(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    vocabulary = _vocabulary(metadata, "spm", path)
    has_merges = "tokenizer.ggml.merges" in metadata
    adds_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    unknown = _token_id(metadata, "unknown_token_id", vocabulary, path)
    pieces = SpmPieces(
        vocabulary=vocabulary,
        scores=[] if has_merges else _numbers(metadata, "scores", len(vocabulary.strings), path),
        adds_space_prefix=adds_space,
        unknown=None if unknown is None else vocabulary.strings[unknown],
    )
    merges = split_merges(_strings(metadata, "merges", path), path) if has_merges else None
    encoder = spm_encoder(pieces, merges, path)
    settings = _settings(metadata, vocabulary, path, adds_bos=True, strips_leading_space=adds_space)
    return Tokenizer(encoder, vocabulary, settings)


def _vocabulary(metadata: Mapping[str, Any], spelling: Spelling, path: Path) -> Vocabulary:
    tokens = _strings(metadata, "tokens", path)
    if "tokenizer.ggml.token_type" in metadata:
        types = _numbers(metadata, "token_type", len(tokens), path)
    else:
        types = [NORMAL] * len(tokens)
    # Old converters marked padding rows as user-defined, new ones as unused; neither is a token.
    unused = {i for i, kind in enumerate(types) if kind == UNUSED or tokens[i].startswith("[PAD")}
    return Vocabulary(
        strings=tuple(None if i in unused else text for i, text in enumerate(tokens)),
        spelling=spelling,
        special=frozenset(i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)) - unused,
        verbatim=frozenset(i for i, kind in enumerate(types) if kind == USER_DEFINED) - unused,
    )


def _settings(
    metadata: Mapping[str, Any],
    vocabulary: Vocabulary,
    path: Path,
    *,
    adds_bos: bool,
    strips_leading_space: bool,
) -> TokenizerSettings:
    template = metadata.get("tokenizer.chat_template")
    ends = (_token_id(metadata, key, vocabulary, path) for key in END_KEYS)
    return TokenizerSettings(
        bos_id=_token_id(metadata, "bos_token_id", vocabulary, path),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos)),
        eos_id=_token_id(metadata, "eos_token_id", vocabulary, path),
        end_ids=frozenset(token_id for token_id in ends if token_id is not None),
        chat_template=template if isinstance(template, str) and template else None,
        strips_leading_space=strips_leading_space,
    )


def _token_id(metadata: Mapping[str, Any], key: str, vocabulary: Vocabulary, path: Path) -> int | None:
    token_id = metadata.get(f"tokenizer.ggml.{key}")
    if token_id is None or token_id in (-1, 0xFFFFFFFF):  # both mean "none"
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < len(vocabulary.strings):
        raise DamagedModelError(f"{path} has {key} = {token_id!r}; expected an id below {len(vocabulary.strings)}.")
    return token_id


def _strings(metadata: Mapping[str, Any], key: str, path: Path) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list):
        raise DamagedModelError(f"{path} has no list of strings tokenizer.ggml.{key}. Convert it again.")
    return values


def _numbers(metadata: Mapping[str, Any], key: str, count: int, path: Path) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    numbers = values.tolist() if values is not None and hasattr(values, "tolist") else []
    if len(numbers) != count:
        raise DamagedModelError(f"{path} has {len(numbers)} entries in tokenizer.ggml.{key} for {count} tokens.")
    return numbers
