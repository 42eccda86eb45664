"""HttpGenerator: a running engine as a Generator: bench, tune and audit see no difference to Slipstream's own."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from slipstream.core.generator import Answer, Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Limits
from slipstream.engines.client import Client
from slipstream.engines.engine import ExternalEngine
from slipstream.engines.engine_types import AnswerPiece, Request, Speculation, TokenCandidate
from slipstream.errors import EngineRequestError


@dataclass(slots=True)
class _Heard:
    """What the events of one answer have said so far: texts and tokens add up, of figures the last one counts."""

    started: float
    text: str = ""
    tokens: tuple[int, ...] = ()
    candidates: tuple[tuple[TokenCandidate, ...], ...] = ()
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_reused: int = 0
    num_tokens: int | None = None
    num_pieces: int = 0  # with text
    speculation: Speculation | None = None
    first_at: float | None = None
    last_at: float = 0.0

    def add(self, piece: AnswerPiece) -> None:
        if piece.text or piece.tokens or piece.finish_reason:  # the end token is counted and computed, but not sent
            self.last_at = time.perf_counter()
        if piece.text or piece.tokens:
            self.first_at = self.first_at or self.last_at
            self.num_pieces += 1
        self.text += piece.text
        self.tokens += piece.tokens
        self.candidates += piece.candidates
        self.finish_reason = piece.finish_reason or self.finish_reason
        self.num_prompt_tokens = piece.num_prompt_tokens or self.num_prompt_tokens
        self.num_reused = piece.num_reused or self.num_reused
        self.num_tokens = piece.num_tokens or self.num_tokens
        self.speculation = piece.speculation or self.speculation


class HttpGenerator:
    """Answers over HTTP with the engine's own counters in `Stats`.

    `model` names the one that is meant, for engines that hold several. `cold`: prompts never come from the engine's
    cache, since a plain and a speculative run would not find the same there. Where the engine tells no counters of an
    answer, its counters before and after it are taken, which is only right for one answer at a time:
    `counts_apart=False` leaves them alone for runs of many streams.
    """

    def __init__(
        self,
        engine: ExternalEngine,
        client: Client,
        label: str,
        *,
        model: str | None = None,
        cold: bool = True,
        counts_apart: bool = True,
    ) -> None:
        self.label = label
        self.engine = engine
        self.client = client
        self._model = model
        self._cold = cold
        self._counts_apart = counts_apart

    def answer(self, prompt: str | Conversation, sampling: Sampling, limits: Limits) -> Answer:
        """Raises EngineRequestError, which keeps the text that had come, where the answer did not come to its end."""
        before = self._counters()
        heard = self._ask(prompt, sampling, limits, top=0)
        after = self._counters() if before else None
        counted = _counted(heard.speculation, after.since(before) if before and after else None)
        return Answer(heard.text, heard.tokens, str(heard.finish_reason), _stats(heard, counted))

    def candidates(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, top: int
    ) -> list[tuple[TokenCandidate, ...]]:
        """For every token of an answer its likeliest alternatives; empty where the engine does not tell them."""
        heard = self._ask(prompt, sampling, limits, top)
        return list(heard.candidates)

    def forget_prompts(self) -> None:
        """Nothing to do: requests of a cold generator say themselves that the cache is not to be used."""

    def forget_learned(self) -> None:
        """Nothing can be done: what an engine learned from earlier answers stays until it is started again."""

    def _ask(self, prompt: str | Conversation, sampling: Sampling, limits: Limits, top: int) -> _Heard:
        request = self.engine.request(prompt, sampling, limits, cold=self._cold, top=top)
        if self._model:
            request = Request(request.path, {**request.body, "model": self._model})
        heard = _Heard(time.perf_counter())
        try:
            for event in self.client.stream(request):
                heard.add(self.engine.read_event(event))
        except EngineRequestError as error:
            error.partial_text = heard.text
            raise
        if heard.finish_reason is None:
            raise EngineRequestError(
                f"the stream from {self.client.url} ended in the middle of an answer ({len(heard.text)} characters had "
                "come): the engine ended or was overloaded; its log says why",
                partial_text=heard.text,
            )
        return heard

    def _counters(self) -> Speculation | None:
        """The engine's counters; None where it has none, or is too slow or busy to tell: the answer matters more."""
        if not self._counts_apart:
            return None
        try:
            return self.engine.read_speculation(self.client)
        except EngineRequestError:
            return None


def _counted(own: Speculation | None, moved: Speculation | None) -> Speculation | None:
    """What the engine told of the answer itself; the movement of its counters where that agrees, as it says more."""
    if own is None or (moved and moved.num_drafted == own.num_drafted and not own.accepted_by_position):
        return moved
    return own


def _stats(heard: _Heard, counted: Speculation | None) -> Stats:
    """Rounds are derived: a round gives its accepted tokens and one of the target's own."""
    speculation = counted or Speculation()
    num_tokens = heard.num_tokens or len(heard.tokens) or heard.num_pieces
    rounds = max(num_tokens - speculation.num_accepted, 1)
    by_depth = dict(enumerate(speculation.accepted_by_position, start=1))
    return Stats(
        num_prompt_tokens=heard.num_prompt_tokens,
        num_reused=heard.num_reused,
        num_tokens=num_tokens,
        rounds=rounds,
        target_forwards=rounds,
        num_drafted=speculation.num_drafted,
        num_accepted=speculation.num_accepted,
        ttft_s=(heard.first_at or heard.started) - heard.started,
        total_s=max(heard.last_at, heard.started) - heard.started,
        drafted_at=Counter(dict.fromkeys(by_depth, speculation.num_drafts or 0)),
        accepted_at=Counter(by_depth),
    )
