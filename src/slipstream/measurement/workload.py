"""A workload: prompts of several kinds, each a conversation to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from slipstream.core.generator import Answer, Generator
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.errors import UsageError


@dataclass(frozen=True, slots=True)
class Message:
    """`role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to run: the user's turns one after another, each answer fed back before the next.

    `opening` is what was said before the first turn: a system message, examples, earlier turns with given answers.
    `raw` asks for the text to be continued as it is, without a chat template: one turn and no opening.
    """

    id: str
    kind: str
    turns: tuple[str, ...]
    opening: tuple[Message, ...] = ()
    raw: bool = False

    def request(self, answers: Sequence[str] = ()) -> str | list[dict[str, str]]:
        """What to generate from, after these answers to the turns before: messages, or the bare text of a raw prompt.

        Raises ValueError when every turn has its answer already.
        """
        if len(answers) >= len(self.turns):
            raise ValueError(f"prompt {self.id} has {len(self.turns)} turn(s), got {len(answers)} answer(s) before it")
        if self.raw:
            return self.turns[0]
        messages = list(self.opening)
        for turn, answer in zip(self.turns, answers, strict=False):
            messages += [Message("user", turn), Message("assistant", answer)]
        messages.append(Message("user", self.turns[len(answers)]))
        return [{"role": message.role, "content": message.content} for message in messages]


def run_conversation(generator: Generator, prompt: Prompt, sampling: Sampling, limits: Limits) -> list[Answer]:
    """An answer a turn, each from a request that holds the answers before it."""
    answers: list[Answer] = []
    for _ in prompt.turns:
        answers.append(generator.answer(prompt.request([a.text for a in answers]), sampling, limits))
    return answers


def take(prompts: Sequence[Prompt], limit: int | None = None) -> list[Prompt]:
    """At most `limit` prompts, evenly over kinds: the first of each kind, then the second of each, and so on.

    Kinds come in the order of their first prompt. Within a kind the order is the file's. A
    smaller limit is always the beginning of a larger one. 0 and None give all, in this same order. Raises UsageError
    when limit is less than 0.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"the limit of prompts is {limit}; expected 1 or more, or 0 for all")
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    rounds = zip_longest(*by_kind.values())
    return [prompt for prompt in chain.from_iterable(rounds) if prompt is not None][: limit or None]
