"""Engine: the loop over all active streams. Budget, propose, score, verify, commit, observe, emit.

With no drafter the draft is empty, so plain decoding is the same loop, timed the same way.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from slipstream.core.auto_policy import AutoPolicy
from slipstream.core.drafter_guard import DrafterGuard
from slipstream.core.generation import Generation
from slipstream.core.nap import Nap
from slipstream.core.policy import Policy, RoundCost
from slipstream.core.protocols import Drafter, Model, Observation, ScoreRequest, Scores
from slipstream.core.protocols import Sequence as CachePlace
from slipstream.core.sampling import Sampling
from slipstream.core.stats import RoundRecord, Stats
from slipstream.core.stream import Limits, Stream
from slipstream.core.text import TextAssembler, TokenDecoder
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.core.verify import VERIFIERS, Choice, Verification
from slipstream.errors import CapacityError, ContextFullError, UsageError

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


@dataclass(slots=True)
class _Turn:
    """One stream's part in a round."""

    stream: Stream
    sequence: CachePlace
    pending: list[int]
    chooses: bool  # the pending tokens reach the end of the stream, so the target chooses the next one
    proposed: DraftTree = EMPTY_TREE
    tree: DraftTree = EMPTY_TREE  # the part of it that is scored

    @property
    def is_prefill(self) -> bool:
        return len(self.pending) > 1 or not self.chooses

    @property
    def num_rows(self) -> int:
        return len(self.pending) + len(self.tree)

    def request(self, next_is_plain: bool) -> ScoreRequest:
        """Where nothing is chosen, how to choose is left open. `next_is_plain`: even if the stream has a drafter."""
        stream = self.stream
        is_plain = not self.is_prefill and not self.tree
        return ScoreRequest(
            self.sequence,
            self.pending,
            self.tree,
            stream.sampling if self.chooses else None,
            stream.num_answer_tokens,
            continues=is_plain and stream.goes_on_plainly and (next_is_plain or stream.drafter is None),
        )


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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if max_streams < 1 or prefill_chunk < 1:
            raise UsageError(f"max_streams {max_streams}, prefill_chunk {prefill_chunk}: expected 1 or more")
        self.target = target
        self.tokenizer = tokenizer
        self.drafter = drafter
        self.policy = policy or AutoPolicy()
        self.stats = Stats()
        self._max_streams = max_streams
        self._chunk = min(prefill_chunk, target.info.max_rows)
        self._waiting: deque[Stream] = deque()
        self._active: list[Stream] = []
        self._clock = clock
        self._drafters = DrafterGuard(target.info.vocab_size, clock)
        self._nap = Nap(target.info.runs_ahead)
        self._lock = threading.RLock()

    # -- requests -------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Messages | Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        drafter: Drafter | Literal["inherit"] | None = _INHERIT,
        verifier: str | Verification = "matching",
    ) -> Generation:
        """Starts an answer. A string is taken as it is, messages go through the chat template, ids are ids.

        Raises ContextFullError or UsageError before anything is computed. An answer that can never fit the cache
        raises CapacityError when it is iterated.
        """
        return Generation(self, self._submit(self.encode(prompt), sampling, limits, drafter, verifier))

    def encode(self, prompt: str | Messages | Sequence[int]) -> list[int]:
        """The ids that `generate` starts from."""
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
        verifier: str | Verification,
    ) -> Stream:
        if isinstance(verifier, str) and verifier not in VERIFIERS:
            raise UsageError(f"unknown verifier {verifier!r}; expected one of {', '.join(VERIFIERS)}")
        self._check_prompt(prompt)
        limits = limits or Limits()
        stream = Stream(
            prompt,
            sampling or Sampling(),
            limits,
            TextAssembler(self.tokenizer.stream_decoder(), limits.stop),
            self.drafter if isinstance(drafter, str) else drafter,
            VERIFIERS[verifier] if isinstance(verifier, str) else verifier,
            self._clock,
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
            except BaseException as error:  # Ctrl-C too: a round that broke off leaves no stream fit to go on
                for stream in self._active:
                    stream.finish("error", error)
                self._release_finished()
                raise
            self._release_finished()
            return True

    def _round(self) -> None:
        started = self._clock()
        draft_s: dict[str, float] = {}
        turns = self._schedule()
        self._draft(turns, draft_s)
        has_prefill, num_drafted = any(t.is_prefill for t in turns), sum(len(t.tree) for t in turns)
        scoring = self._clock()
        scores = self.target.score([t.request(self._nap.is_on) for t in turns])
        score_s = self._clock() - scoring
        observations = self._commit(turns, scores)
        gains = [self._receive(o) for o in observations]
        self._drafters.observe(observations)
        ran_ahead = self._nap.runs_ahead and not num_drafted
        cost = RoundCost(
            rows=sum(t.num_rows for t in turns),
            num_streams=len(turns),
            draft_s=draft_s,
            score_s=score_s,
            total_s=self._clock() - started,
            has_prefill=has_prefill,
            ran_ahead=ran_ahead,
            is_stalled=self.target.info.runs_ahead and not num_drafted and (bool(draft_s) or not ran_ahead),
        )
        self._account(turns, observations, gains, cost)
        if any(t.stream.drafter for t in turns):
            self.policy.record(cost, observations)
        if has_prefill:
            self._nap.interrupt()
        else:
            self._nap.record(num_drafted, sum(len(o.verdict.path) for o in observations), cost.total_s)

    def _schedule(self) -> list[_Turn]:
        """Decoding streams first, then prompt chunks for as many rows as are left."""
        rows_left = self.target.info.max_rows
        turns: list[_Turn] = []
        for stream in sorted(self._active, key=lambda s: len(s.pending) > 1):
            pending = stream.pending[: min(self._chunk, rows_left)]
            if not pending:
                break
            assert stream.sequence is not None
            rows_left -= len(pending)
            turns.append(_Turn(stream, stream.sequence, pending, len(pending) == len(stream.pending)))
        return turns

    def _draft(self, turns: list[_Turn], draft_s: dict[str, float]) -> None:
        """Gives the decoding turns their drafts, cut to what there is room for and what pays.

        Enters the seconds that each drafter took into `draft_s`.
        """
        decoding = [t for t in turns if not t.is_prefill]
        in_passing = self._nap.is_on
        if (in_passing and not self._nap.looks) or not any(t.stream.drafter for t in decoding):
            return
        streams = [t.stream for t in decoding]
        wanted = self.policy.budgets(streams, [self._room(s) for s in streams])
        budgets = _free_only(streams, wanted) if in_passing else wanted
        proposed = self._drafters.propose(streams, budgets, draft_s)
        kept = self.policy.select(streams, proposed, self.target.info.max_rows - sum(t.num_rows for t in turns))
        self._nap.heed(any(kept) or budgets != wanted)
        if in_passing:
            kept = [EMPTY_TREE] * len(kept)
        for turn, draft, worthwhile in zip(decoding, proposed, kept, strict=True):
            turn.proposed, turn.tree = draft, worthwhile

    def _commit(self, turns: list[_Turn], scores: list[Scores]) -> list[Observation]:
        """Verifies each draft and keeps what was accepted. A prompt chunk that is not the last is kept unjudged."""
        self.stats.target_forwards += 1
        observations = []
        for turn, score in zip(turns, scores, strict=True):
            turn.stream.stats.target_forwards += 1
            if not turn.chooses:
                turn.sequence.commit()
                continue
            choice = Choice(turn.stream.sampling, turn.stream.history, turn.stream.num_answer_tokens)
            verdict = turn.stream.verifier.verify(turn.tree, score, choice)
            turn.sequence.commit(verdict.path)
            observations.append(Observation(turn.stream, turn.proposed, turn.tree, verdict))
        return observations

    def _room(self, stream: Stream) -> int:
        """Tokens that may be drafted: neither context nor answer can overflow, the target's own token counted."""
        if stream.drafter is None:
            return 0
        context_left = self.target.info.context_length - len(stream.tokens)
        answer_left = stream.limits.max_tokens - stream.num_answer_tokens
        return max(0, min(context_left, answer_left) - 1)

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

    def _account(self, turns: list[_Turn], observations: list[Observation], gains: list[int], cost: RoundCost) -> None:
        """Enters the round into the stats of each stream, at an equal share of its seconds. Reading a prompt is no
        decoding: its seconds are counted apart."""
        share_s = 1.0 / cost.num_streams
        drafting_s = cost.drafting_s
        rest_s = cost.total_s - cost.score_s - drafting_s
        prefilled = {turn.stream.id: turn.stream for turn in turns if turn.is_prefill}
        for stream in prefilled.values():
            for stats in (stream.stats, self.stats):
                stats.prefill_s += cost.score_s * share_s
        for o, gained in zip(observations, gains, strict=True):
            accepted = min(len(o.verdict.path), gained)
            decoding_s = 0.0 if o.stream.id in prefilled else share_s
            record = RoundRecord(
                num_drafted=len(o.scored),
                num_accepted=accepted,
                num_tokens=gained,
                drafted_depth=max(o.scored.depths(), default=0),
                accepted_depth=accepted,
                draft_s=drafting_s * decoding_s,
                score_s=cost.score_s * decoding_s,
                rest_s=rest_s * decoding_s,
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
            try:
                stream.sequence = self.target.open(stream.tokens, reserve)
            except Exception as error:
                if isinstance(error, CapacityError) and self._active:
                    return  # less room than it looked: wait like the others
                self._waiting.popleft()
                stream.finish("error", error)
                continue
            self._waiting.popleft()
            stream.stats.num_reused = stream.sequence.length
            self._active.append(stream)
            self._drafters.begin(stream)

    def _release_finished(self) -> None:
        if not any(s.done for s in (*self._active, *self._waiting)):
            return
        finished = [s for s in self._active if s.done]
        self._active = [s for s in self._active if not s.done]
        self._waiting = deque(s for s in self._waiting if not s.done)
        for stream in finished:
            self._drafters.end(stream)
            self.policy.forget(stream)
            if stream.sequence:
                stream.sequence.close()
                stream.sequence = None
            self.stats.num_prompt_tokens += stream.stats.num_prompt_tokens
            self.stats.num_reused += stream.stats.num_reused
            self.stats.drafter_error = self.stats.drafter_error or stream.stats.drafter_error


def _free_only(streams: list[Stream], budgets: list[int]) -> list[int]:
    """Without drafts that would take the device's time while it is at a plain round."""
    return [n if s.drafter and s.drafter.is_free else 0 for s, n in zip(streams, budgets, strict=True)]
