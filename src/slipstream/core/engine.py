"""Engine: the loop over all active streams. Budget, propose, score, verify, commit, observe, emit.

With no drafter the draft is empty, so plain decoding is the same loop, timed the same way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from slipstream.core.auto_policy import AutoPolicy
from slipstream.core.policy import Policy, RoundCost
from slipstream.core.protocols import Drafter, Model, Observation, ScoreRequest
from slipstream.core.sampling import Sampling
from slipstream.core.stats import RoundRecord, Stats
from slipstream.core.stream import FinishReason, Limits, Stream, Token
from slipstream.core.text import TextAssembler, TokenDecoder
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.core.verify import VERIFIERS, Choice, Verdict
from slipstream.errors import CapacityError, ContextFullError, UsageError

log = logging.getLogger("slipstream")

Messages = Sequence[Mapping[str, Any]]
DEFAULT_CHUNK = 256  # prompt tokens a stream feeds in one round: bounds memory, and what others wait
_INHERIT: Literal["inherit"] = "inherit"


class EngineTokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def prompt_ids(self, text: str) -> list[int]: ...

    def chat_ids(self, messages: Messages) -> list[int]: ...

    def stream_decoder(self) -> TokenDecoder: ...


@dataclass(frozen=True, slots=True)
class _Turn:
    """One stream's part in a round."""

    stream: Stream
    pending: list[int]
    proposed: DraftTree = EMPTY_TREE
    tree: DraftTree = EMPTY_TREE

    @property
    def is_prefill(self) -> bool:
        return len(self.pending) > 1

    @property
    def chooses(self) -> bool:
        """Whether the pending tokens reach the end of the stream, so that the target chooses the next one."""
        return len(self.pending) == len(self.stream.pending)


class Engine:
    """Decodes many streams with one target model. Safe to use from several threads."""

    def __init__(
        self,
        target: Model,
        tokenizer: EngineTokenizer,
        drafter: Drafter | None = None,
        policy: Policy | None = None,
        *,
        max_streams: int = 32,
        prefill_chunk: int = DEFAULT_CHUNK,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.drafter = drafter
        self.policy = policy or AutoPolicy()
        self.stats = Stats()
        self._max_streams = max_streams
        self._chunk = min(prefill_chunk, target.info.max_rows)
        self._waiting: deque[Stream] = deque()
        self._active: list[Stream] = []
        self._lock = threading.RLock()

    # -- requests -------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Messages | Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        drafter: Drafter | Literal["inherit"] | None = _INHERIT,
        verifier: str = "matching",
    ) -> Generation:
        """Starts an answer. A string is taken as it is, messages go through the chat template, ids are ids.

        Raises ContextFullError, CapacityError or UsageError before anything is computed.
        """
        return Generation(self, self._submit(self._encode(prompt), sampling, limits, drafter, verifier))

    def _encode(self, prompt: str | Messages | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.prompt_ids(prompt)
        if prompt and isinstance(prompt[0], Mapping):
            return self.tokenizer.chat_ids(prompt)  # type: ignore[arg-type]
        return list(prompt)  # type: ignore[arg-type]

    def _submit(
        self,
        prompt: list[int],
        sampling: Sampling | None,
        limits: Limits | None,
        drafter: Drafter | Literal["inherit"] | None,
        verifier: str,
    ) -> Stream:
        if verifier not in VERIFIERS:
            raise UsageError(f"unknown verifier {verifier!r}; expected one of {', '.join(VERIFIERS)}")
        self._check_prompt(prompt)
        limits = limits or Limits()
        stream = Stream(
            prompt,
            sampling or Sampling(),
            limits,
            TextAssembler(self.tokenizer.stream_decoder(), limits.stop),
            self.drafter if isinstance(drafter, str) else drafter,
            verifier,
        )
        with self._lock:
            self._waiting.append(stream)
        return stream

    def _check_prompt(self, prompt: list[int]) -> None:
        info = self.target.info
        if not prompt:
            raise UsageError("the prompt is empty: it has no token to go on from")
        if len(prompt) >= info.context_length:
            raise ContextFullError(
                f"the prompt has {len(prompt)} tokens and {info.name} holds {info.context_length}, answer included: "
                "shorten the prompt, or load the model with a larger context"
            )
        bad = next((t for t in prompt if not 0 <= t < info.vocab_size), None)
        if bad is not None:
            raise UsageError(f"token id {bad} is not in the vocabulary of {info.vocab_size} of {info.name}")

    def cancel(self, stream: Stream) -> None:
        """Ends a stream at once and frees its place. Harmless when it is over."""
        with self._lock:
            if not stream.done:
                stream.finish("cancelled")
            self._release_finished()

    def close(self) -> None:
        """Cancels everything that runs or waits."""
        with self._lock:
            for stream in [*self._waiting, *self._active]:
                self.cancel(stream)

    @property
    def num_active(self) -> int:
        return len(self._active)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    # -- the round ------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One round over all streams: one forward of the target. False when there is nothing to do."""
        with self._lock:
            self._admit()
            if not self._active:
                return False
            try:
                self._round()
            except Exception as error:
                for stream in self._active:
                    stream.finish("error", error)
                self._release_finished()
                raise
            self._release_finished()
            return True

    def _round(self) -> None:
        started = time.perf_counter()
        draft_s: dict[str, float] = {}
        turns = self._draft(self._schedule(), draft_s)
        scoring = time.perf_counter()
        scores = self.target.score([ScoreRequest(t.stream.sequence, t.pending, t.tree) for t in turns])  # type: ignore[arg-type]
        scored = time.perf_counter()
        observations = []
        for turn, score in zip(turns, scores, strict=True):
            chooses = turn.chooses
            verdict = self._verify(turn, score) if chooses else None
            turn.stream.sequence.commit(verdict.path if verdict else ())  # type: ignore[union-attr]
            turn.stream.stats.target_forwards += 1
            if verdict:
                observations.append(Observation(turn.stream, turn.proposed, turn.tree, verdict))
        self.stats.target_forwards += 1
        gains = [self._receive(o) for o in observations]
        self._observe(observations)
        cost = RoundCost(
            rows=sum(len(t.pending) + len(t.tree) for t in turns),
            num_streams=len(turns),
            draft_s=draft_s,
            score_s=scored - scoring,
            rest_s=time.perf_counter() - started - sum(draft_s.values()) - (scored - scoring),
            has_prefill=any(t.is_prefill for t in turns),
        )
        for o, gain in zip(observations, gains, strict=True):
            self._account(o, gain, cost)
        self.policy.record(cost, observations)

    def _schedule(self) -> list[_Turn]:
        """Decoding streams first, then prompt chunks for as many rows as are left."""
        rows_left = self.target.info.max_rows
        turns: list[_Turn] = []
        for stream in sorted(self._active, key=lambda s: len(s.pending) > 1):
            pending = stream.pending[: min(self._chunk, rows_left)]
            if not pending:
                break
            rows_left -= len(pending)
            turns.append(_Turn(stream, pending))
        return turns

    def _draft(self, turns: list[_Turn], draft_s: dict[str, float]) -> list[_Turn]:
        """Gives the decoding turns their drafts, cut to what there is room for and what pays.

        Enters the seconds that each drafter took into `draft_s`.
        """
        ready = [t for t in turns if not t.is_prefill and t.stream.drafter]
        if not ready:
            return turns
        streams = [t.stream for t in ready]
        budgets = self.policy.budgets(streams, [self._room(s) for s in streams])
        proposed = self._propose(streams, budgets, draft_s)
        max_nodes = self.target.info.max_rows - sum(len(t.pending) for t in turns)
        kept = self.policy.select(streams, proposed, max_nodes)
        drafted = {s.id: _Turn(s, t.pending, p, k) for s, t, p, k in zip(streams, ready, proposed, kept, strict=True)}
        return [drafted.get(t.stream.id, t) for t in turns]

    def _room(self, stream: Stream) -> int:
        """Tokens that may be drafted: neither context nor answer can overflow, the target's own token counted."""
        context_left = self.target.info.context_length - len(stream.tokens)
        answer_left = stream.limits.max_tokens - stream.num_answer_tokens
        return max(0, min(context_left, answer_left) - 1)

    def _propose(self, streams: list[Stream], budgets: list[int], draft_s: dict[str, float]) -> list[DraftTree]:
        """Asks each drafter once for all its streams. A drafter that breaks is left out from then on."""
        trees = [EMPTY_TREE] * len(streams)
        groups: dict[int, list[int]] = {}
        for i, (stream, budget) in enumerate(zip(streams, budgets, strict=True)):
            if budget > 0:
                groups.setdefault(id(stream.drafter), []).append(i)
        for members in groups.values():
            drafter = streams[members[0]].drafter
            assert drafter is not None
            started = time.perf_counter()
            try:
                proposals = drafter.propose([streams[i] for i in members], [budgets[i] for i in members])
                for i, tree in zip(members, proposals, strict=True):
                    trees[i] = self._checked(tree, budgets[i])
            except Exception as error:
                self._give_up(drafter, error)
            draft_s[drafter.name] = draft_s.get(drafter.name, 0.0) + time.perf_counter() - started
        return trees

    def _checked(self, tree: DraftTree, budget: int) -> DraftTree:
        """The draft within its budget, cut before the first token that the target does not have."""
        vocab = self.target.info.vocab_size
        bad = next((i for i, token in enumerate(tree.tokens) if not 0 <= token < vocab), len(tree))
        keep = min(budget, bad)
        return tree if keep == len(tree) else tree.keep(range(keep))

    def _verify(self, turn: _Turn, scores: Any) -> Verdict:
        stream = turn.stream
        choice = Choice(stream.sampling, stream.history, stream.num_answer_tokens)
        return VERIFIERS[stream.verifier](turn.tree, scores, choice)

    def _receive(self, observation: Observation) -> int:
        """Hands the new tokens to the stream until it is done; returns how many it took."""
        tokens = observation.verdict.tokens(observation.scored)
        stream = observation.stream
        for count, token in enumerate(tokens, start=1):
            stream.receive(token, drafted=count < len(tokens), end_tokens=self.tokenizer.eos_ids)
            if stream.done:
                return count
        if len(stream.tokens) >= self.target.info.context_length:
            stream.finish("length")
        return len(tokens)

    def _observe(self, observations: list[Observation]) -> None:
        groups: dict[int, list[Observation]] = {}
        for o in observations:
            if o.stream.drafter and not o.stream.done:
                groups.setdefault(id(o.stream.drafter), []).append(o)
        for members in groups.values():
            drafter = members[0].stream.drafter
            assert drafter is not None
            try:
                drafter.observe(members)
            except Exception as error:
                self._give_up(drafter, error)

    def _account(self, o: Observation, gained: int, cost: RoundCost) -> None:
        accepted = min(len(o.verdict.path), gained)
        record = RoundRecord(
            num_drafted=len(o.scored),
            num_accepted=accepted,
            num_tokens=gained,
            drafted_depth=max(o.scored.depths(), default=0),
            accepted_depth=accepted,
            draft_s=sum(cost.draft_s.values()),
            score_s=cost.score_s,
            rest_s=cost.rest_s,
        )
        o.stream.stats.add(record)
        self.stats.add(record)

    # -- joining and leaving --------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Lets waiting streams in, in order, while there is room. One that can never fit fails alone."""
        while self._waiting and len(self._active) < self._max_streams:
            stream = self._waiting[0]
            if stream.done:
                self._waiting.popleft()
                continue
            reserve = min(len(stream.tokens) + stream.limits.max_tokens, self.target.info.context_length)
            if not self.target.can_open(reserve):
                if self._active:
                    return
                self._waiting.popleft()
                stream.finish("error", CapacityError(
                    f"a stream of {reserve} tokens does not fit the KV cache of {self.target.info.name}: "
                    "lower max_tokens, or give the cache more room"))  # fmt: skip
                continue
            self._waiting.popleft()
            stream.sequence = self.target.open(stream.tokens, reserve)
            stream.stats.num_reused = stream.sequence.length
            self._active.append(stream)
            if stream.drafter:
                self._begin(stream, stream.drafter)

    def _begin(self, stream: Stream, drafter: Drafter) -> None:
        try:
            drafter.begin(stream)
        except Exception as error:
            self._give_up(drafter, error)

    def _release_finished(self) -> None:
        finished = [s for s in self._active if s.done]
        self._active = [s for s in self._active if not s.done]
        self._waiting = deque(s for s in self._waiting if not s.done)
        for stream in finished:
            if stream.drafter:
                with suppress(Exception):  # it is over: a drafter that can't tidy up harms nobody
                    stream.drafter.end(stream)
            self.policy.forget(stream)
            if stream.sequence:
                stream.sequence.close()
                stream.sequence = None
            self.stats.num_prompt_tokens += stream.stats.num_prompt_tokens
            self.stats.num_reused += stream.stats.num_reused

    def _give_up(self, drafter: Drafter, error: Exception) -> None:
        """Goes on without a drafter that broke: the text does not depend on it. Says so once."""
        message = f"drafter {drafter.name} failed and is left out: {type(error).__name__}: {error}"
        log.warning(message)
        log.debug("the drafter's traceback", exc_info=error)
        if self.drafter is drafter:
            self.drafter = None
        for stream in [*self._active, *self._waiting]:
            if stream.drafter is drafter:
                stream.drafter = None
                stream.stats.drafter_error = message
                with suppress(Exception):
                    drafter.end(stream)
        self.stats.drafter_error = message


class Generation:
    """An answer on its way. Iterate it for tokens; leaving the loop early cancels it.

    Whoever asks for a token drives the rounds, for all streams of the engine: no thread is needed, and with several
    threads the others find their tokens waiting.
    """

    def __init__(self, engine: Engine, stream: Stream) -> None:
        self._engine = engine
        self.stream = stream
        self._text: list[str] = []

    def __iter__(self) -> Iterator[Token]:
        try:
            while (token := self._next()) is not None:
                self._text.append(token.text)
                yield token
        finally:
            self.cancel()

    def _next(self) -> Token | None:
        while not self.stream.outbox:
            if self.stream.done:
                if self.stream.error:
                    raise self.stream.error
                return None
            self._engine.step()
        return self.stream.outbox.popleft()

    def cancel(self) -> None:
        self._engine.cancel(self.stream)

    def result(self) -> Generation:
        """Runs to the end."""
        for _ in self:
            pass
        return self

    @property
    def text(self) -> str:
        """What was read of the answer so far."""
        return "".join(self._text)

    @property
    def tokens(self) -> list[int]:
        return self.stream.answer

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.stream.finish_reason

    @property
    def stats(self) -> Stats:
        return self.stream.stats
