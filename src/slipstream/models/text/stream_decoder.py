"""StreamDecoder: token by token to text, without incomplete characters."""

from __future__ import annotations

import codecs
from typing import Protocol


class TokenBytes(Protocol):
    """The methods of a tokenizer that are needed here."""

    @property
    def strips_leading_space(self) -> bool: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class StreamDecoder:
    """What `push` and `flush` return, joined, is `tokenizer.decode` of all ids. Constant work per token."""

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_space = tokenizer.strips_leading_space

    def push(self, token_id: int) -> str:
        """The text that is complete with this token; "" while a character is incomplete."""
        return self._stripped(self._utf8.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """The rest at the end of the stream: an incomplete character shows as U+FFFD."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if not (self._strip_space and text):
            return text
        self._strip_space = False
        return text.removeprefix(" ")
