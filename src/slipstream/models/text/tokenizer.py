"""Tokenizer: text to ids and back, the same for every file format."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.errors import UsageError
from slipstream.models.text.chat_contents import ContentGuard, ids_of
from slipstream.models.text.chat_template import ChatTemplate, Message, Tools
from slipstream.models.text.plain_text import check_text
from slipstream.models.text.stream_decoder import StreamDecoder
from slipstream.models.text.vocabulary import Vocabulary, same_strings

if TYPE_CHECKING:
    import tokenizers

__all__ = ["StreamDecoder", "Tokenizer", "TokenizerSettings", "same_vocabulary"]

# Control tokens with these names end an answer in every model that has them. Files list only some of their end tokens
# (GGUF often a single one), so these are added.
END_NAMES = frozenset(
    {
        "</s>",
        "<EOT>",
        "<end_of_turn>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end|>",
        "<|eom_id|>",
        "<|eot_id|>",
    }
    | {"<|im_end|>", "<|return|>"}
)


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What a model's files say in addition to the vocabulary."""

    bos_id: int | None
    add_bos: bool
    eos_id: int | None  # the one that chat templates use
    end_ids: frozenset[int]  # further end tokens listed in the files
    chat_template: str | None
    strips_leading_space: bool  # encoding adds a space before the text, decoding removes it


class Tokenizer:
    """Created by tokenizer_hf or tokenizer_gguf. Safe to use from several threads."""

    def __init__(self, encoder: tokenizers.Tokenizer, vocabulary: Vocabulary, settings: TokenizerSettings) -> None:
        self.vocabulary = vocabulary
        self.bos_id = settings.bos_id
        self.add_bos = settings.add_bos and settings.bos_id is not None
        self.eos_id = settings.eos_id  # the one that chat templates use
        self.eos_ids = _all_end_tokens(vocabulary, settings)
        self.chat_template = settings.chat_template
        self.strips_leading_space = settings.strips_leading_space
        self._encoder = encoder
        self._encoders: dict[bool, tokenizers.Tokenizer] = {}  # by `special`
        self._encoders_lock = threading.Lock()

    @property
    def vocab_size(self) -> int:
        """Ids up to the last real token; the embedding may have more rows."""
        return self.vocabulary.num_tokens

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of a text, without BOS. `special`: names of control tokens in the text become those tokens.

        Raises UsageError for a text with incomplete characters.
        """
        check_text(text)
        return ids_of(text, self._encoder_for(special))

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of a raw prompt: BOS if the model uses it, then the text, without control tokens."""
        return [*self._bos(), *self.encode(text)]

    def chat_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        special_in_content: bool = False,
    ) -> list[int]:
        """Ids of a conversation through the model's template. UsageError for bad messages or no template.

        Names of control tokens in the messages stay text; only those written by the template become tokens.
        `special_in_content`: names in the messages become tokens too.
        """
        if not special_in_content and (masked := self._content_guard.mask([*messages, {"tools": tools}])):
            *inner, described = masked.messages
            text = self.chat_text(inner, tools=described["tools"], add_generation_prompt=add_generation_prompt)
            return self._content_guard.encode(text, masked)
        text = self.chat_text(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return self.encode(text, special=True)

    def chat_text(
        self, messages: Sequence[Message], *, tools: Tools | None = None, add_generation_prompt: bool = True
    ) -> str:
        """The conversation as formatted by the template."""
        if self.chat_template is None:
            raise UsageError("This model has no chat template; use --raw to pass the prompt unchanged.")
        template = ChatTemplate(self.chat_template, self._name(self.bos_id), self._name(self.eos_id))
        return template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)

    def decode(self, ids: Sequence[int], *, show_special: bool = False) -> str:
        """Text of ids. Special tokens are omitted unless requested; invalid UTF-8 shows as U+FFFD."""
        spell = self.vocabulary.spelled_bytes if show_special else self.vocabulary.token_bytes
        text = b"".join(map(spell, ids)).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def stream_decoder(self) -> StreamDecoder:
        """Turns the tokens of one stream into text as they arrive."""
        return StreamDecoder(self)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; b"" for special tokens and rows without a token."""
        return self.vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """One token for display: special tokens by name, partial characters as U+FFFD."""
        return self.vocabulary.spelled_bytes(token_id).decode("utf-8", errors="replace")

    def token_strings(self) -> list[str | None]:
        """The token strings by id as in the file; None for a row without a token."""
        return list(self.vocabulary.strings)

    def is_special(self, token_id: int) -> bool:
        return token_id in self.vocabulary.special

    def encoder_copy(self) -> tokenizers.Tokenizer:
        """A copy of the encoder, to change or write to a file."""
        return type(self._encoder).from_str(self._encoder.to_str())

    def fingerprint(self) -> str:
        """Equal for equal vocabularies, regardless of file format and padding."""
        return self.vocabulary.fingerprint()

    def _encoder_for(self, special: bool) -> tokenizers.Tokenizer:
        """One for each setting: if the setting changed from call to call, a short text would wait for a long one."""
        with self._encoders_lock:
            if special not in self._encoders:
                encoder = self.encoder_copy() if self._encoders else self._encoder
                encoder.encode_special_tokens = not special
                self._encoders[special] = encoder
            return self._encoders[special]

    @functools.cached_property
    def _content_guard(self) -> ContentGuard:
        control = self.vocabulary.special | self.eos_ids | ({self.bos_id} if self.bos_id is not None else set())
        return ContentGuard(self._encoder, control)

    def _bos(self) -> list[int]:
        return [self.bos_id] if self.add_bos and self.bos_id is not None else []

    def _name(self, token_id: int | None) -> str:
        if token_id is None or token_id >= len(self.vocabulary.strings):
            return ""
        return self.vocabulary.strings[token_id] or ""


def same_vocabulary(a: Tokenizer, b: Tokenizer) -> bool:
    """Whether ids mean the same in both, compared by token string; filler rows are ignored."""
    return same_strings(a.vocabulary.strings, b.vocabulary.strings)


def _all_end_tokens(vocabulary: Vocabulary, settings: TokenizerSettings) -> frozenset[int]:
    stated = settings.end_ids if settings.eos_id is None else settings.end_ids | {settings.eos_id}
    return stated | {token_id for token_id in vocabulary.special if vocabulary.strings[token_id] in END_NAMES}
