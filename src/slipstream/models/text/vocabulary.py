"""Vocabulary: the token strings of a model by id, and the exact bytes of each."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

# byte_level: GPT-2's printable alphabet stands for bytes. spm: "▁" stands for a space, "<0xNN>" for a byte.
Spelling = Literal["byte_level", "spm"]

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Rows that only pad the embedding; two vocabularies that differ only in these rows are the same.
FILLER = re.compile(r"\[PAD\d*\]|<\|?pad(ding)?[\w|]*>|<\|?(unused|reserved|dummy|extra|placeholder)[^>]*>", re.I)


@dataclass(frozen=True)
class Vocabulary:
    """`strings[i]` is token i as in its file; None for a row without a token."""

    strings: tuple[str | None, ...]
    spelling: Spelling
    special: frozenset[int]  # control tokens: never text
    verbatim: frozenset[int]  # added tokens that are plain text
    _bytes: dict[int, bytes] = field(default_factory=dict, compare=False, repr=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token; b"" for special tokens and for rows without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = b"" if token_id in self.special else self.spelled_bytes(token_id)
        return known

    def spelled_bytes(self, token_id: int) -> bytes:
        """Like token_bytes, but a special token gives its name."""
        if token_id < 0:
            raise ValueError(f"got the token id {token_id}; expected 0 or more")
        text = self.strings[token_id] if token_id < len(self.strings) else None
        if text is None:
            return b""
        if token_id in self.special or token_id in self.verbatim:
            return text.encode("utf-8", errors="replace")
        return _unspell_byte_level(text) if self.spelling == "byte_level" else _unspell_spm(text)

    @property
    def num_tokens(self) -> int:
        """Ids up to the last token; rows without a token at the end do not count."""
        return _end(self.strings, lambda text: text is None)

    def fingerprint(self) -> str:
        """SHA-256 of the tokens in order. All filler rows count as equal, and those at the end are ignored."""
        digest = hashlib.sha256()
        for text in self.strings[: _end(self.strings, is_filler)]:
            digest.update(b"\xff" if is_filler(text) else str(text).encode("utf-8", errors="replace") + b"\xfe")
        return digest.hexdigest()


def _end(strings: Sequence[str | None], skip: Callable[[str | None], bool]) -> int:
    end = len(strings)
    while end and skip(strings[end - 1]):
        end -= 1
    return end


def is_filler(text: str | None) -> bool:
    return text is None or FILLER.fullmatch(text) is not None


def same_strings(a: Sequence[str | None], b: Sequence[str | None]) -> bool:
    """Equality id by id; a filler row equals any other filler row and a missing row."""
    shorter, longer = sorted((a, b), key=len)
    if not all(is_filler(text) for text in longer[len(shorter) :]):
        return False
    return all(x == y or (is_filler(x) and is_filler(y)) for x, y in zip(shorter, longer, strict=False))


@functools.cache
def byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def _unspell_byte_level(text: str) -> bytes:
    alphabet = byte_of_char()
    try:
        return bytes([alphabet[char] for char in text])
    except KeyError:  # a token outside the alphabet is plain text
        return text.encode("utf-8", errors="replace")


def _unspell_spm(text: str) -> bytes:
    if match := BYTE_PIECE.fullmatch(text):
        return bytes([int(match[1], 16)])
    return text.replace("▁", " ").encode("utf-8", errors="replace")
