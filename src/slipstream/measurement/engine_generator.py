"""EngineGenerator: this project's engine as a Generator."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.core.engine import Engine
from slipstream.core.generator import Answer, Conversation
from slipstream.core.policy import PolicyReport
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.core.verify import Verifier


class EngineGenerator:
    """`make_engine` gives an engine with a new drafter and a new policy on the same loaded model."""

    def __init__(self, label: str, make_engine: Callable[[], Engine], verifier: str | Verifier = "matching") -> None:
        self.label = label
        self._verifier = verifier
        self._make_engine = make_engine
        self._engine = make_engine()

    def answer(self, prompt: str | Conversation, sampling: Sampling, limits: Limits) -> Answer:
        done = self._engine.generate(prompt, sampling, limits, verifier=self._verifier).result()
        return Answer(done.text, tuple(done.tokens), str(done.finish_reason), done.stats)

    def forget_prompts(self) -> None:
        self._engine.forget_prompts()

    def forget_learned(self) -> None:
        self._engine = self._make_engine()

    def explain(self) -> PolicyReport:
        """The policy's account of itself since the last `forget_learned`."""
        return self._engine.policy.explain()
