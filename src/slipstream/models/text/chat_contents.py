"""ContentGuard: names of control tokens in a message stay text; only the template writes control tokens."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.errors import UsageError
from slipstream.models.text.plain_text import check_text

if TYPE_CHECKING:
    import tokenizers

_PRIVATE_USE = range(0xF0000, 0x10FFFE)  # characters without an assigned meaning
_FILLING = "\0 text between tokens"


def ids_of(text: str, encoder: tokenizers.Tokenizer) -> list[int]:
    """Its ids, without BOS. Other threads run meanwhile: `encode` would hold the GIL for the whole text."""
    ids: list[int] = encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


@dataclass(frozen=True, slots=True)
class MaskedMessages:
    """Messages in which one character of each control token's name is replaced by a placeholder."""

    messages: list[dict[str, Any]]
    originals: dict[int, str]  # by the code point of the placeholder

    def unmask(self, text: str) -> str:
        return text.translate(self.originals)


class ContentGuard:
    """Separates the text of messages from the text of the template.

    Most messages contain no control token, and there is nothing to do. In others, one character of each name is
    replaced by a placeholder: length, beginning and end stay the same, so a template may strip, cut and measure the
    text. In the template's output, every name that is still complete comes from the template.
    """

    def __init__(self, encoder: tokenizers.Tokenizer, control_ids: frozenset[int]) -> None:
        self._encoder = encoder
        self._control_ids = control_ids

    def mask(self, messages: Sequence[Mapping[str, Any]]) -> MaskedMessages | None:
        """None if no message contains a control token. Raises UsageError for texts with incomplete characters."""
        texts = list(_texts(list(messages)))
        if not any(self._names.find(text) for text in texts):
            return None
        stand_ins = _StandIns(set().union(*texts))
        masked = _mapped(list(messages), functools.partial(self._masked, stand_ins=stand_ins))
        return MaskedMessages(masked, {ord(own): char for char, own in stand_ins.by_char.items()})

    def encode(self, text: str, masked: MaskedMessages) -> list[int]:
        """Ids of a template's output for masked messages."""
        parts, position = [], 0
        for start, end, token_id in self._names.find(text):
            parts += [masked.unmask(text[position:start]), self._guarded.names[token_id]]
            position = end
        return self._guarded.encode("".join([*parts, masked.unmask(text[position:])]))

    def _masked(self, text: str, stand_ins: _StandIns) -> str:
        """Repeats until no name is left: removing one name may uncover another that overlapped it."""
        while names := self._names.find(text):
            chars = list(text)
            for start, end, _ in names:
                left = [i for i in range(start, end) if chars[i] not in stand_ins.taken]
                inner = [i for i in left if not chars[i].isspace()] or left
                middle = inner[len(inner) // 2]
                chars[middle] = stand_ins.stand_in(chars[middle])
            text = "".join(chars)
        return text

    @functools.cached_property
    def _names(self) -> _NameFinder:
        return _NameFinder(self._encoder, self._control_ids)

    @functools.cached_property
    def _guarded(self) -> _GuardedEncoder:
        return _GuardedEncoder(self._encoder, self._control_ids)


class _StandIns:
    """Placeholder characters that occur in none of the texts."""

    def __init__(self, used: set[str]) -> None:
        self._free = (char for char in map(chr, _PRIVATE_USE) if char not in used)
        self.by_char: dict[str, str] = {}
        self.taken: set[str] = set()

    def stand_in(self, char: str) -> str:
        if char not in self.by_char:
            free = next(self._free, None)
            if free is None:
                raise UsageError("The messages use all private-use characters of Unicode; remove some of them.")
            self.by_char[char] = free
            self.taken.add(free)
        return self.by_char[char]


class _NameFinder:
    """Finds the control tokens that an encoder would see in a text, by the library's own matching."""

    def __init__(self, encoder: tokenizers.Tokenizer, control_ids: frozenset[int]) -> None:
        from tokenizers import Tokenizer, models

        self._finder = Tokenizer(models.WordLevel({_FILLING: 0}, unk_token=_FILLING))
        if encoder.normalizer is not None:
            self._finder.normalizer = encoder.normalizer
        added = encoder.get_added_tokens_decoder()
        self._finder.add_tokens(list(added.values()))
        found = {self._finder.token_to_id(token.content): token_id for token_id, token in added.items()}
        self._control = {own: token_id for own, token_id in found.items() if token_id in control_ids}

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """Start, end and token id of each, including the spaces around it that belong to the token."""
        check_text(text)
        (found,) = self._finder.encode_batch([text], add_special_tokens=False)  # without the GIL, as in `ids_of`
        return [
            (*span, self._control[own])
            for own, span in zip(found.ids, found.offsets, strict=True)
            if own in self._control
        ]


class _GuardedEncoder:
    """A copy of an encoder that recognises control tokens only by secret names."""

    def __init__(self, encoder: tokenizers.Tokenizer, control_ids: frozenset[int]) -> None:
        from tokenizers import AddedToken

        secret = secrets.token_hex(8)
        added = encoder.get_added_tokens_decoder()
        control = {token_id: token for token_id, token in added.items() if token_id in control_ids}
        self.names = {token_id: f"\ue000{secret}-{token_id}\ue001" for token_id in control}
        self._encoder = type(encoder).from_str(encoder.to_str())
        # The public names of special tokens are plain text here.
        self._encoder.add_special_tokens(list(control.values()))
        self._encoder.encode_special_tokens = True
        self._encoder.add_tokens(
            [
                AddedToken(name, normalized=control[token_id].normalized, special=False)
                for token_id, name in self.names.items()
            ]
        )
        self._token_ids = {self._encoder.token_to_id(name): token_id for token_id, name in self.names.items()}

    def encode(self, text: str) -> list[int]:
        return [self._token_ids.get(i, i) for i in ids_of(text, self._encoder)]


def _texts(value: Any) -> Iterator[str]:
    """All texts in lists and objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """The same lists and objects with all texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in value]
    return value
