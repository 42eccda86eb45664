"""The tokenizer files of a Hugging Face folder -> Tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from slipstream.errors import DamagedModelError, ModelNotFoundError, UnsupportedModelError
from slipstream.models.files import damage_in, read_file, read_json, read_optional_config
from slipstream.models.text.bpe import SpmPieces, spm_encoder
from slipstream.models.text.chat_template import template_of_folder
from slipstream.models.text.sentencepiece_file import MAX_SENTENCEPIECE_BYTES, SentencePieceModel, read_sentencepiece
from slipstream.models.text.tokenizer import Tokenizer, TokenizerSettings
from slipstream.models.text.tokenizer_gguf import CONTROL, UNKNOWN, UNUSED, USER_DEFINED
from slipstream.models.text.vocabulary import Spelling, Vocabulary

MAX_TOKEN_ID = 1 << 24  # far above every vocabulary; a malicious id must not create a huge list


@dataclass(frozen=True, slots=True)
class SideFiles:
    """The small files next to the tokenizer; {} for a missing one."""

    path: Path
    tokenizer_config: Mapping[str, Any]
    special_tokens: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    config: Mapping[str, Any]

    def token_name(self, key: str) -> str | None:
        """A token such as bos_token: a string, or an object with its content."""
        for source in (self.tokenizer_config, self.special_tokens):
            value = source.get(key)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                return value
        return None

    def token_ids(self, key: str) -> list[int]:
        """Ids such as eos_token_id: an id or a list of ids, from both configs."""
        ids: list[int] = []
        for source in (self.generation_config, self.config):
            value = source.get(key)
            ids += [item for item in (value if isinstance(value, list) else [value]) if type(item) is int]
        return ids


def tokenizer_from_folder(path: Path) -> Tokenizer:
    """Reads tokenizer.json, or tokenizer.model if that is missing. Raises ModelError subclasses only."""
    with damage_in(path, "tokenizer"):
        return _tokenizer_from_folder(path)


def _tokenizer_from_folder(path: Path) -> Tokenizer:
    side = SideFiles(
        path=path,
        tokenizer_config=read_optional_config(path / "tokenizer_config.json"),
        special_tokens=read_optional_config(path / "special_tokens_map.json"),
        generation_config=read_optional_config(path / "generation_config.json"),
        config=read_optional_config(path / "config.json"),
    )
    if (path / "tokenizer.json").is_file():
        return _from_json(path / "tokenizer.json", side)
    if (path / "tokenizer.model").is_file():
        return _from_sentencepiece(path / "tokenizer.model", side)
    raise ModelNotFoundError(
        f"{path} has neither tokenizer.json nor tokenizer.model. Copy the tokenizer's files into the folder."
    )


def _from_json(path: Path, side: SideFiles) -> Tokenizer:
    description = read_json(path)
    try:
        encoder = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception for every error
        raise DamagedModelError(f"{path} is not a valid tokenizer file: {error}. Download it again.") from error
    encoder.no_truncation()
    encoder.no_padding()
    spelling, strips = _spelling(description, path)
    vocabulary = _vocabulary(encoder, spelling, path)
    bos_id = _id_of(side.token_name("bos_token"), side.token_ids("bos_token_id"), encoder)
    empty_ids = encoder.encode("", add_special_tokens=True).ids
    settings = TokenizerSettings(
        bos_id=bos_id,
        add_bos=bool(side.tokenizer_config.get("add_bos_token", bos_id is not None and empty_ids[:1] == [bos_id])),
        eos_id=_id_of(side.token_name("eos_token"), side.token_ids("eos_token_id"), encoder),
        end_ids=_known(side.token_ids("eos_token_id"), vocabulary),
        chat_template=template_of_folder(side.path, side.tokenizer_config),
        strips_leading_space=strips,
    )
    return Tokenizer(encoder, vocabulary, settings)


def _spelling(description: Mapping[str, Any], path: Path) -> tuple[Spelling, bool]:
    """How tokens are spelled, and whether decoding drops one leading space."""
    steps = list(_steps(description.get("decoder"), "decoders"))
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return "byte_level", False
    if "Metaspace" in kinds:
        return "spm", any(step.get("prepend_scheme", "always") != "never" for step in steps)
    if "ByteFallback" in kinds or "Replace" in kinds:
        return "spm", any(step.get("type") == "Strip" and step.get("start") for step in steps)
    raise UnsupportedModelError(
        f"{path} has the decoder {sorted(map(str, kinds)) or 'none'}; byte-level and SentencePiece tokenizers are "
        "supported. Use another engine for this model."
    )


def _steps(step: Any, key: str) -> Iterable[Mapping[str, Any]]:
    if not isinstance(step, dict):
        return
    if step.get("type") == "Sequence" and isinstance(step.get(key), list):
        for inner in step[key]:
            yield from _steps(inner, key)
    else:
        yield step


def _vocabulary(encoder: tokenizers.Tokenizer, spelling: Spelling, path: Path) -> Vocabulary:
    ids: dict[str, int] = encoder.get_vocab(with_added_tokens=True)
    added = encoder.get_added_tokens_decoder()
    size = max(ids.values(), default=-1) + 1
    if not 0 < size <= MAX_TOKEN_ID:
        raise DamagedModelError(f"{path} has token ids up to {size - 1}; expected 0 to {MAX_TOKEN_ID - 1}.")
    strings: list[str | None] = [None] * size
    for text, token_id in ids.items():
        strings[token_id] = text
    for token_id, token in added.items():
        strings[token_id] = token.content
    special = frozenset(token_id for token_id, token in added.items() if token.special)
    return Vocabulary(tuple(strings), spelling, special, frozenset(added) - special)


def _id_of(name: str | None, ids: list[int], encoder: tokenizers.Tokenizer) -> int | None:
    found: int | None = encoder.token_to_id(name) if name is not None else None
    return found if found is not None else next(iter(ids), None)


def _known(ids: Iterable[int], vocabulary: Vocabulary) -> frozenset[int]:
    return frozenset(i for i in ids if 0 <= i < len(vocabulary.strings))


def _from_sentencepiece(path: Path, side: SideFiles) -> Tokenizer:
    model = read_sentencepiece(path, read_file(path, MAX_SENTENCEPIECE_BYTES))
    types = [piece.type for piece in model.pieces]
    vocabulary = Vocabulary(
        strings=tuple(None if piece.type == UNUSED else piece.text for piece in model.pieces),
        spelling="spm",
        special=frozenset(i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)),
        verbatim=frozenset(i for i, kind in enumerate(types) if kind == USER_DEFINED),
    )
    unknown = vocabulary.strings[model.unk_id] if 0 <= model.unk_id < len(vocabulary.strings) else None
    scores = [piece.score for piece in model.pieces]
    encoder = spm_encoder(SpmPieces(vocabulary, scores, model.adds_space_prefix, unknown), None, path)
    return Tokenizer(encoder, vocabulary, _sentencepiece_settings(model, side, vocabulary))


def _sentencepiece_settings(model: SentencePieceModel, side: SideFiles, vocabulary: Vocabulary) -> TokenizerSettings:
    return TokenizerSettings(
        bos_id=model.bos_id if model.bos_id >= 0 else None,
        add_bos=bool(side.tokenizer_config.get("add_bos_token", True)),
        eos_id=model.eos_id if model.eos_id >= 0 else None,
        end_ids=_known(side.token_ids("eos_token_id"), vocabulary),
        chat_template=template_of_folder(side.path, side.tokenizer_config),
        strips_leading_space=model.adds_space_prefix,
    )
