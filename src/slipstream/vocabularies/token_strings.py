"""The token strings of a model by id, for any kind of tokenizer. No encoder is built, so a scan is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.errors import DamagedModelError, ModelNotFoundError
from slipstream.models.files import damage_in, read_file, read_json
from slipstream.models.gguf.header import read_header
from slipstream.models.text.sentencepiece_file import MAX_SENTENCEPIECE_BYTES, read_sentencepiece
from slipstream.models.text.tokenizer_gguf import UNUSED
from slipstream.models.text.tokenizer_hf import MAX_TOKEN_ID
from slipstream.models.text.vocabulary import Vocabulary

Strings = tuple[str | None, ...]  # None: a row without a token


def token_strings(path: Path) -> Strings:
    """Of a folder or a GGUF file. Raises ModelError subclasses."""
    with damage_in(path):
        return _token_strings(path)


def _token_strings(path: Path) -> Strings:
    if not path.is_dir():
        return _from_gguf(path)
    if (path / "tokenizer.json").is_file():
        return _from_json(path / "tokenizer.json")
    if (path / "tokenizer.model").is_file():
        return _from_sentencepiece(path / "tokenizer.model")
    raise ModelNotFoundError(
        f"{path} has neither tokenizer.json nor tokenizer.model. Copy the tokenizer's files there."
    )


def fingerprint(strings: Strings) -> str:
    """Equal for equal vocabularies, regardless of padding."""
    return Vocabulary(strings, "byte_level", frozenset(), frozenset()).fingerprint()


def _from_gguf(path: Path) -> Strings:
    metadata = read_header(path).metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise DamagedModelError(f"{path} has no vocabulary (tokenizer.ggml.tokens). Convert it again.")
    kinds: Any = metadata.get("tokenizer.ggml.token_type")
    types = kinds.tolist() if hasattr(kinds, "tolist") and len(kinds) == len(tokens) else [0] * len(tokens)
    return tuple(
        None if kind == UNUSED or text.startswith("[PAD") else text for text, kind in zip(tokens, types, strict=True)
    )


def _from_json(path: Path) -> Strings:
    data = read_json(path)
    model = data.get("model")
    vocab: Any = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):  # BPE, WordPiece
        ids = {token_id: text for text, token_id in vocab.items() if type(token_id) is int}
    elif isinstance(vocab, list):  # Unigram: pairs of text and score
        ids = {i: str(piece[0]) for i, piece in enumerate(vocab) if isinstance(piece, list) and piece}
    else:
        raise DamagedModelError(f"{path} has no vocabulary. Download it again.")
    for token in data.get("added_tokens") or []:
        if isinstance(token, dict) and type(token.get("id")) is int:
            ids[token["id"]] = str(token.get("content"))
    if not ids or min(ids) < 0 or max(ids) >= MAX_TOKEN_ID:
        raise DamagedModelError(f"{path} has no token ids, or ids out of range. Download it again.")
    return tuple(ids.get(i) for i in range(max(ids) + 1))


def _from_sentencepiece(path: Path) -> Strings:
    model = read_sentencepiece(path, read_file(path, MAX_SENTENCEPIECE_BYTES))
    return tuple(None if piece.type == UNUSED else piece.text for piece in model.pieces)
