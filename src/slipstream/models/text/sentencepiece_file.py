"""tokenizer.model: SentencePiece's protobuf. Only the needed fields are read."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import DamagedModelError, UnsupportedModelError

MAX_SENTENCEPIECE_BYTES = 16 << 20  # the largest in use, with 262,000 pieces, has about 5 MB
BPE_MODEL = 2
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
NORMAL_PIECE = 1
UNIGRAM_MODEL = 1  # the default when the file does not say


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    score: float
    type: int  # the same numbers as in GGUF


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    pieces: list[Piece]
    adds_space_prefix: bool
    unk_id: int
    bos_id: int
    eos_id: int


def read_sentencepiece(path: Path, data: bytes) -> SentencePieceModel:
    """Raises DamagedModelError, or UnsupportedModelError for models that are not plain BPE."""
    try:
        pieces = [_piece(dict(_fields(raw))) for number, raw in _fields(data) if number == 1]
        trainer, normalizer = _message(data, 2), _message(data, 3)
    except (LookupError, struct.error, TypeError, ValueError, AttributeError) as error:
        raise DamagedModelError(f"{path} is not a SentencePiece model ({error}). Download it again.") from error
    kind = trainer.get(3, UNIGRAM_MODEL)
    # 2: a compiled character map, 4: remove extra whitespace. Llama's and Mistral's models do neither.
    if kind != BPE_MODEL or normalizer.get(2) or normalizer.get(4, 1):
        raise UnsupportedModelError(
            f"{path} is a SentencePiece model of kind {kind}, or one that normalises text; only plain BPE is "
            "supported. Use a copy of the model with tokenizer.json."
        )
    return SentencePieceModel(
        pieces=pieces,
        adds_space_prefix=bool(normalizer.get(3, 1)),
        unk_id=int(trainer.get(40, 0)),
        bos_id=_signed(trainer.get(41, 1)),
        eos_id=_signed(trainer.get(42, 2)),
    )


def _message(data: bytes, wanted: int) -> dict[int, Any]:
    for number, raw in _fields(data):
        if number == wanted:
            return dict(_fields(raw))
    return {}


def _piece(fields: dict[int, Any]) -> Piece:
    return Piece(fields[1].decode("utf-8"), float(fields.get(2, 0.0)), int(fields.get(3, NORMAL_PIECE)))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field number and value, one after the other; nested messages stay bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, position = _varint(data, position)
            yield number, value
        elif wire == BYTES:
            length, position = _varint(data, position)
            if position + length > len(data):
                raise ValueError("a field ends after the end of the file")
            yield number, data[position : position + length]
            position += length
        elif wire in (FIXED32, FIXED64):
            layout = "<f" if wire == FIXED32 else "<d"
            yield number, struct.unpack_from(layout, data, position)[0]
            position += struct.calcsize(layout)
        else:
            raise ValueError(f"unknown wire type {wire}")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
