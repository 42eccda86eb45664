"""HttpGenerator: a running engine as a Generator, so bench, tune and audit treat it like Slipstream's own."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from slipstream.core.generator import Answer, Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Limits
from slipstream.engines.client import Client
from slipstream.engines.driver import ExternalEngine
from slipstream.engines.engine_types import AnswerPiece, Request, Speculation, TokenCandidate
from slipstream.errors import EngineRequestError


@dataclass(slots=True)
class _Heard:
    """The events of one answer so far: texts and tokens are summed; for figures the last value counts."""

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
        if piece.text or piece.tokens or piece.finish_reason:  # the end token is computed and counted, but not sent
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

    `model` selects the model, for engines with several. `cold`: prompts never come from the engine's cache, since a
    plain and a speculative run would find different entries there. If the engine reports no counters per answer, the
    difference of its counters before and after the answer is used. This is only correct for one answer at a time;
    `counts_apart=False` turns it off for runs with many streams.
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
        """Raises EngineRequestError with the partial text if the answer is incomplete."""
        before = self._counters()
        heard = self._ask(prompt, sampling, limits, top=0)
        after = self._counters() if before else None
        counted = _counted(heard.speculation, after.since(before) if before and after else None)
        return Answer(heard.text, heard.tokens, str(heard.finish_reason), _stats(heard, counted))

    def candidates(
        self, prompt: str | Conversation, sampling: Sampling, limits: Limits, top: int
    ) -> list[tuple[TokenCandidate, ...]]:
        """The most likely alternatives for every token of an answer; empty if the engine does not report them."""
        heard = self._ask(prompt, sampling, limits, top)
        return list(heard.candidates)

    def forget_prompts(self) -> None:
        """Nothing to do: each request of a cold generator turns the cache off."""

    def forget_learned(self) -> None:
        """Not possible: an engine keeps what it learned from earlier answers until it restarts. Slipstream's own keeps
        nothing of requests that are cold."""

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
                f"the stream from {self.client.url} ended before the answer was complete (after {len(heard.text)} "
                "characters): the engine exited or was overloaded; see its log",
                partial_text=heard.text,
            )
        return heard

    def _counters(self) -> Speculation | None:
        """The engine's counters; None if it has none, or is too busy to respond: the answer matters more."""
        if not self._counts_apart:
            return None
        try:
            return self.engine.read_speculation(self.client)
        except EngineRequestError:
            return None


def _counted(own: Speculation | None, moved: Speculation | None) -> Speculation | None:
    """The engine's counts for the answer; the difference of its counters if that agrees, since it has more detail."""
    if own is None or (moved and moved.num_drafted == own.num_drafted and not own.accepted_by_position):
        return moved
    return own


def _stats(heard: _Heard, counted: Speculation | None) -> Stats:
    """The number of rounds is computed: each round gives its accepted tokens and one token of the target."""
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
        drafts_counted=counted is not None,
        ttft_s=(heard.first_at or heard.started) - heard.started,
        total_s=max(heard.last_at, heard.started) - heard.started,
        drafted_at=Counter(dict.fromkeys(by_depth, speculation.num_drafts or 0)),
        accepted_at=Counter(by_depth),
    )
