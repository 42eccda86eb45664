"""tokenizer.json and tokenizer_config.json of a Tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import decoders, processors

from slipstream.models.export.config import write_json
from slipstream.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers


def save_tokenizer(tokenizer: Tokenizer, context_length: int, folder: Path) -> None:
    """Both files, with the chat template. A text gives the same ids in Slipstream and in transformers."""
    encoder = tokenizer.encoder_copy()
    if encoder.decoder is None:
        encoder.decoder = _decoder(tokenizer)
    if _adds_bos(encoder, tokenizer.bos_id) != tokenizer.add_bos:
        encoder.post_processor = _bos_processor(tokenizer)
    encoder.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", _settings(tokenizer, context_length))


def _settings(tokenizer: Tokenizer, context_length: int) -> dict[str, Any]:
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # tokenizer.json as it is, with nothing of a family added
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": tokenizer.add_bos,
        "bos_token": _name(tokenizer, tokenizer.bos_id),
        "eos_token": _name(tokenizer, tokenizer.eos_id),
        "chat_template": tokenizer.chat_template,
    }
    return {key: value for key, value in settings.items() if value is not None}


def _name(tokenizer: Tokenizer, token_id: int | None) -> str | None:
    return None if token_id is None else tokenizer.vocabulary.strings[token_id]


def _decoder(tokenizer: Tokenizer) -> decoders.Decoder:
    """GGUF files have none; Slipstream decodes by itself."""
    if tokenizer.vocabulary.spelling == "byte_level":
        return decoders.ByteLevel()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if tokenizer.strips_leading_space else steps)


def _adds_bos(encoder: tokenizers.Tokenizer, bos_id: int | None) -> bool:
    return bos_id is not None and encoder.encode("", add_special_tokens=True).ids[:1] == [bos_id]


def _bos_processor(tokenizer: Tokenizer) -> processors.PostProcessor | None:
    bos = _name(tokenizer, tokenizer.bos_id)
    if not tokenizer.add_bos or bos is None:
        return None
    return processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, tokenizer.bos_id)]
    )
