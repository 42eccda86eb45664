"""Generator: anything that answers prompts and counts its work: this engine, or another one over HTTP.

Bench, tune and audit see only this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Limits

Conversation = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    tokens: tuple[int, ...]  # empty if the engine does not report it
    finish_reason: str
    stats: Stats


class Generator(Protocol):
    @property
    def label(self) -> str:
        """Its name in tables: the drafter and its settings; `none` is plain decoding."""
        ...

    def answer(self, prompt: str | Conversation, sampling: Sampling, limits: Limits) -> Answer:
        """One whole answer. A string is continued unchanged; messages go through the chat template."""
        ...

    def forget_prompts(self) -> None:
        """Empties the prompt cache, so that the next answer starts cold."""
        ...

    def forget_learned(self) -> None:
        """Forgets what drafter and policy learned from earlier answers."""
        ...
