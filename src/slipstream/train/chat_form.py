"""ChatForm: how a model's chat template opens a user's turn, and where in a conversation each answer stands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.core.prefix import common_prefix_length
from slipstream.models.text.chat_template import Message
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.train.shards import Role, Text

_MARK = "slipstream-user-text"  # stands where the user's text begins; no template changes it


class ChatForm:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._opened: dict[tuple[tuple[str, str], ...], list[int]] = {}  # openings without an answer are few

    @property
    def has_template(self) -> bool:
        return self.tokenizer.chat_template is not None

    def start_of_text(self) -> list[int]:
        """What a base model writes free text from."""
        first = self.tokenizer.bos_id if self.tokenizer.bos_id is not None else self.tokenizer.eos_id
        return [first if first is not None else 0]

    def open_user(self, messages: Sequence[Message]) -> list[int]:
        """The conversation up to where the next user's text begins. [] where the template does not keep it as it is."""
        key = tuple((m["role"], m["content"]) for m in messages)
        if key in self._opened:
            return self._opened[key]
        text = self.tokenizer.chat_text([*messages, _user(_MARK)], add_generation_prompt=False)
        before, mark, _ = text.partition(_MARK)
        ids = self.tokenizer.encode(before, special=True) if mark else []
        if len(messages) <= 1:
            self._opened[key] = ids
        return ids

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The conversation up to where the answer begins."""
        return self.tokenizer.chat_ids(messages)

    def words(self, tokens: Sequence[int]) -> str:
        """The text of an answer or a question, without its end token."""
        return self.tokenizer.decode(tokens).strip()

    def is_finished(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[-1] in self.tokenizer.eos_ids

    def annotated(self, messages: Sequence[Message], answer: Sequence[int], kind: str) -> Text:
        """A conversation that ends with a user's message, and the answer to it. Earlier answers count too."""
        prompt = self.prompt(messages)
        tokens = np.array([*prompt, *answer], np.int32)
        roles = np.zeros(len(tokens), np.uint8)
        for index, message in enumerate(messages):
            if message["role"] == "user":
                start, end = len(self.open_user(messages[:index])), self._end(messages[: index + 1], prompt)
                roles[start:end] = Role.USER
            elif message["role"] == "assistant":
                start = self._end(messages[:index], prompt)
                roles[start : self._end_of_answer(start, prompt)] = Role.ANSWER
        roles[len(prompt) :] = Role.ANSWER
        return Text(tokens, roles, kind)

    def _end(self, messages: Sequence[Message], whole: list[int]) -> int:
        """Where the answer to these messages begins in the whole conversation."""
        return common_prefix_length(self.prompt(messages), whole)

    def _end_of_answer(self, start: int, whole: list[int]) -> int:
        """Behind the end token of the answer that begins at `start`."""
        ends = (at + 1 for at in range(start, len(whole)) if whole[at] in self.tokenizer.eos_ids)
        return next(ends, len(whole))


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
