"""A tokenizer as the metadata of a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.errors import UnsupportedModelError
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.text.pretokenizers import PRE_TOKENIZERS
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.models.text.tokenizer_gguf import CONTROL, NORMAL, UNUSED, USER_DEFINED, tokenizer_from_metadata

if TYPE_CHECKING:
    import gguf

# Texts in which the known ways of splitting differ: digits, contractions, spaces, capitals, accents apart from letters.
_PROBES = (
    "It's 12345 o'clock, I'LL go; x=10000000\n\n\n  two  spaces\t\ttabs \r\n",
    "HelloWorld camelCase snake_case naïve e\u0301 日本語のテキスト ٣٤٥ 🎉🎉 don't Don'T",
    "def f(a,b):\n    return a//b  # a/b/c ...!!!\n\n",
)


def add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    """As the model's own GGUF file has it, where it is one. Raises UnsupportedModelError for a tokenizer that GGUF has
    no name for."""
    if checkpoint.path.is_file():
        _copy_tokenizer(writer, checkpoint.path)
        return
    values = tokenizer_metadata(checkpoint)
    writer.add_tokenizer_model(values["model"])
    writer.add_tokenizer_pre(values["pre"])
    writer.add_token_list(values["tokens"])
    writer.add_token_types(values["token_type"].tolist())
    writer.add_token_merges(values["merges"])
    writer.add_add_bos_token(values["add_bos_token"])
    for key, add in (
        ("bos_token_id", writer.add_bos_token_id),
        ("eos_token_id", writer.add_eos_token_id),
        ("eot_token_id", writer.add_eot_token_id),
    ):
        if key in values:
            add(values[key])
    if checkpoint.tokenizer.chat_template is not None:
        writer.add_chat_template(checkpoint.tokenizer.chat_template)


def _copy_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """Every value that the file has of its tokenizer, byte for byte."""
    import gguf

    for name, field in gguf.GGUFReader(path).fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind, item_kind = field.types[0], field.types[-1]
        parts = [field.parts[index] for index in field.data]
        items = [p.tobytes() if item_kind == gguf.GGUFValueType.STRING else p.tolist()[0] for p in parts]
        if kind != gguf.GGUFValueType.ARRAY:
            writer.add_key_value(name, items[0], kind)
        elif items:  # the writer takes no empty ones
            writer.add_key_value(name, items, kind, item_kind)


def tokenizer_metadata(checkpoint: Checkpoint) -> dict[str, Any]:
    """By the names that GGUF has for them, less their prefix. Raises UnsupportedModelError."""
    tokenizer, path = checkpoint.tokenizer, checkpoint.path
    if tokenizer.vocabulary.spelling != "byte_level":
        raise UnsupportedModelError(
            f"{path} has a SentencePiece tokenizer; this command writes byte-level ones. Use llama.cpp's "
            "convert_hf_to_gguf.py and llama-quantize for this model."
        )
    values = _metadata(tokenizer, checkpoint.config.vocab_size)
    return values | {"pre": _pre_tokenizer(values, tokenizer, path)}


def _metadata(tokenizer: Tokenizer, rows: int) -> dict[str, Any]:
    """All but how text is split. `rows`: those of the embedding."""
    import numpy as np

    vocabulary = tokenizer.vocabulary
    strings = [*vocabulary.strings, *[None] * (rows - len(vocabulary.strings))]
    types = [
        UNUSED if text is None else CONTROL if i in vocabulary.special
        else USER_DEFINED if i in vocabulary.verbatim else NORMAL
        for i, text in enumerate(strings)
    ]  # fmt: skip
    merges = json.loads(tokenizer.encoder_copy().to_str())["model"]["merges"]
    others = sorted(tokenizer.eos_ids - {tokenizer.eos_id})
    found = {
        "model": "gpt2",
        "tokens": [f"[PAD{i}]" if text is None else text for i, text in enumerate(strings)],
        "token_type": np.array(types, np.int32),
        "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
        "add_bos_token": tokenizer.add_bos,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "eot_token_id": others[0] if others else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _pre_tokenizer(values: dict[str, Any], tokenizer: Tokenizer, path: Path) -> str:
    """The first way of splitting text, by its name in GGUF, that gives the same tokens."""
    metadata = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    expected = [tokenizer.encode(text) for text in _PROBES]
    for name in PRE_TOKENIZERS:
        same = tokenizer_from_metadata(metadata | {"tokenizer.ggml.pre": name}, path)
        if [same.encode(text) for text in _PROBES] == expected:
            return name
    raise UnsupportedModelError(
        f"{path}: its tokenizer splits text in a way that GGUF has no name for here. Use llama.cpp's "
        "convert_hf_to_gguf.py and llama-quantize for this model."
    )
